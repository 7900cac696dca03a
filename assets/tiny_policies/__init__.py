"""Tiny policies: scripted players, their demonstrations, a word-level tokenizer and the script that trains."""
