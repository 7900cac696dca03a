"""Checks before a run: `intended` is the full list, `loading` checks weights without loading them, and `tasks`
checks rows and reset results."""
