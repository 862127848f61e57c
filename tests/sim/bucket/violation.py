"""What is raised where the product breaks its word."""

from __future__ import annotations


class Violated(AssertionError):
    """An invariant of the log does not hold."""
