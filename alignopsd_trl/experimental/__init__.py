"""Features that no GPU has run: pools of vLLM servers, teacher servers, overlapping rounds (docs/experimental.md)."""
