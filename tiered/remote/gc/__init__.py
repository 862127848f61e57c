"""Garbage collection: deletes objects that no catalog names, in the role of the maintainer."""
