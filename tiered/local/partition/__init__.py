"""One partition: append, roll, fsync, truncate, deletion of segments, reads, producer state, and its open."""
