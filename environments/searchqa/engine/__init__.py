"""What an episode stands on: actions, retrieval, what a search shows, and how an answer is scored."""
