"""Lowest layer of the hot tier: file operations, the lock, the limit of open files, and small files."""
