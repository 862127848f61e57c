"""Keyed compaction on the local disk: choice of a partition, rounds of compaction, and progress per partition."""
