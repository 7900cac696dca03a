"""Features that no GPU has run yet: pools of vLLM servers, teacher servers, overlapping rounds
(docs/experimental.md)."""
