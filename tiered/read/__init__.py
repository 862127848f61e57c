"""Reads over both tiers as one stream, of records or of Arrow tables."""
