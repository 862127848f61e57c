"""One segment: its ``.log``, its indexes, its seal, its reads, and its replacement by other segments."""
