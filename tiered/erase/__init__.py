"""Erasure of records from the bucket, by key, key prefix or time, with a proof."""
