"""Decisions: state, policy and time in, a frozen plan out. No I/O, no clock."""
