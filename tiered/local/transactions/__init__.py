"""Transactions over the partitions of one log: coordinator, its log, producer ids, and positions of groups."""
