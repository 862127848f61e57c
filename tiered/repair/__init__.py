"""Repair by version: find what is wrong, plan, show the plan, ask, act."""
