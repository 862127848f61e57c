"""The command line ``tiered``: one command per file, text and JSON from the same data."""
