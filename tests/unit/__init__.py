"""Unit tests, one package per area."""
