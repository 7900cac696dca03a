"""The policy as the trainer uses it: scoring, the privileged view, turn rows, and the seams to TRL."""
