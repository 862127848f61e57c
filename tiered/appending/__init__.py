"""Buffered appending: the appender of a topic, its receipts, and the thread that writes."""
