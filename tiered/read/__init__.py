"""Reads over both tiers: one stream of records, and its records as Arrow tables."""
