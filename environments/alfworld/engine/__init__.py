"""The game itself: TextWorld's engine made fast, games and rooms of our own, and the processes that play them."""
