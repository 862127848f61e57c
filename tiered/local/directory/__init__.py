"""Log directories, one or several per log: topics and partitions, background tasks, moves, deletion and closing."""
