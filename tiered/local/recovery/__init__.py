"""Recovery of a partition directory that was not closed cleanly: leftover files first, then files that may be torn."""
