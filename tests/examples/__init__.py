"""Tests of the programs that users copy."""
