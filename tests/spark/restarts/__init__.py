"""Drivers of a stream into the sink killed at every step, and what the log then holds (make spark-restarts)."""
