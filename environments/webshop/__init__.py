"""WebShop: a shop to search, browse and buy in, as text. Same texts, rankings, goals and rewards as the original.

Importing this registers ``WebShop-v0`` with Gymnasium.
"""

from __future__ import annotations

import gymnasium

from environments.webshop.suite import suite

__all__ = ["suite"]

if "WebShop-v0" not in gymnasium.registry:
    gymnasium.register(id="WebShop-v0", entry_point="environments.webshop.gym:WebShopGym")
