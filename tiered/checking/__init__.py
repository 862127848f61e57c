"""Check of both tiers."""
