"""WebShop: a shop to search, browse and buy in, as text. Same texts, rankings, goals and rewards as the original."""

from environments.webshop.suite import suite

__all__ = ["suite"]
