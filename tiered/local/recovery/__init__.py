"""What an open does with a partition directory that was not closed: leftovers first, then what may be torn."""
