"""The shipped sentence encoder: the thoughts it is trained on, the script that trains it, and how well encoders do."""
