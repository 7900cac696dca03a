"""The scripts that made the embedded worlds: WebShop's catalogue and Search-QA's closed world. Not installed."""
