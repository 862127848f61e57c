"""Repair by version."""
