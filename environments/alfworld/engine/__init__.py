"""The game itself: a faster TextWorld engine, generated games and rooms, and the processes that play them."""
