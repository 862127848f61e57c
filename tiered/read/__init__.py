"""Both tiers read as one: the stream, and its records as Arrow tables."""
