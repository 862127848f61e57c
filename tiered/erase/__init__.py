"""Erasure of records."""
