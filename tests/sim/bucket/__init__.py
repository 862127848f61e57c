"""The bucket alone, one request of one process at a time: see ``world``."""
