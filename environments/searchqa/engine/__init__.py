"""The parts of an episode: actions, retrieval, the display of search results, and the scoring of answers."""
