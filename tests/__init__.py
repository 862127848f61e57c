"""Tests of tieredlog."""
