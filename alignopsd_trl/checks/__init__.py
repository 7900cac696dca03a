"""Checks before a run: `intended` is the full list, `model_files` checks weights without loading them, and `tasks`
checks rows and reset results."""
