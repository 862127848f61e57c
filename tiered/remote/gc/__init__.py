"""Garbage collection: the maintainer's deletion of objects that no catalog names."""
