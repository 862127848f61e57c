"""Appending with a buffer: the appender of a topic, its receipts, the thread that writes; and what Arrow appends."""
