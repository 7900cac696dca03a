"""Log-probs of given responses under given prompts, without gradient: packing, teacher forcing, the privileged view."""
