"""Helpers for tests of programs on tieredlog: no real time, no real network, failures on demand.

``clock``: a clock that only the test moves, ids from a seed. ``faults``: a store that fails by rule.
``store_contract``: the suite that every store passes.
"""
