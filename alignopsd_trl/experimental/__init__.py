"""What no GPU has run yet: pools of vLLM servers, servers of a teacher, rounds that overlap (docs/experimental.md)."""
