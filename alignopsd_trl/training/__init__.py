"""The parts of `AlignOPSDTrainer`. Each stands alone and gets its inputs as arguments."""
