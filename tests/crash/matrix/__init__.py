"""The crash matrix: every operation of the hot tier, cut short or failed at every call that it makes to the disk."""
