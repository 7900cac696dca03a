"""The policy as the trainer uses it: sampling, scoring, the privileged view, and turn rows."""
