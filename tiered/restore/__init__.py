"""Restore of a log directory from a bucket."""
