"""Recovery of a partition directory that was not closed: leftovers first, then files that may be torn."""
