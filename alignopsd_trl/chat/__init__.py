"""Chats: prompts are rendered, dialogues go on, and responses are read."""
