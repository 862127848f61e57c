"""Damage of every kind, and what the product says of it."""
