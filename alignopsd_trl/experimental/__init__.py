"""Continuous play and rounds that overlap, as a trainer with a configuration of its own (docs/experimental.md)."""
