"""Keyed compaction on the local disk: choice of a partition, one round over it, progress of each."""
