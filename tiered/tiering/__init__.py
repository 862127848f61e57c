"""The engine between the tiers: it carries sealed segments to the bucket, for every way to run it."""
