"""Measures what each skill of a bank is worth: ``alignopsd skills check BANK``."""
