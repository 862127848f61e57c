"""A log directory, or several: topics and partitions, background tasks, moves, deletion, and the end."""
