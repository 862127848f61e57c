"""Check of a log: of its directory, of its bucket, or of both."""
