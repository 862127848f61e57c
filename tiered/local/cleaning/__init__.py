"""Keyed compaction on the local disk: which partition is cleaned now, one round over it, how far it is cleaned."""
