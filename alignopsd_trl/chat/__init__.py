"""Renders prompts, continues dialogues and parses responses."""
