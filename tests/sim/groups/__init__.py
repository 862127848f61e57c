"""Members of a group on a bucket, one request of one member at a time: see ``world``."""
