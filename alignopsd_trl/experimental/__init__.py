"""Features that no GPU has run: vLLM servers with continuous play, overlapping rounds (docs/experimental.md)."""
