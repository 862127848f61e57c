"""Transactions over the partitions of one log: their coordinator, its log, and the ids of its producers."""
