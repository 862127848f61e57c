"""Unit tests of the formats."""
