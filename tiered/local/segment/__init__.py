"""One segment: its ``.log``, its indexes, its seal, how it is read, and how others take its place."""
