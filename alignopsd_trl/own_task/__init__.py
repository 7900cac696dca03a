"""Tools for a new task: its scaffold, its check, demonstrations and a first policy."""
