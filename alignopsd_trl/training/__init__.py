"""What `AlignOPSDTrainer` is made of: each module one base class over TRL's trainer."""
