"""The shop itself: catalogue, search, goals, pages, sessions and rewards, as in the original."""
