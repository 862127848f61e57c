"""Object stores: one contract (``base``), its backends, and what stands around them.

``location.open_store(url)`` opens one; ``driver.drive`` runs steps on it.
"""
