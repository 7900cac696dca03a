"""What makes a run one that can be killed, resumed and believed: its folder, its checkpoints, what ends it."""
