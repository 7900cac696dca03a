"""The parts that let a run be killed, resumed and trusted: its folder, its checkpoints and the checks that end it."""
