"""Helpers for tests of programs on tieredlog: no real time, no real network, failures on demand.

``clock``: a clock that only the test moves, ids from a seed. ``faults``: a store that fails by rule.
``store_contract``: the suite that every store passes. ``moto``: an S3 server in this process; needs moto. ``model``: a
partition that is always right, a list of batches.
"""
