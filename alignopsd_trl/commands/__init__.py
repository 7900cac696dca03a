"""What only the command line enters: each folder is a command or a few of them, and `cli` finds them by name."""
