"""What tests of a program on tieredlog need: no real time, no real network, failures on order.

``clock`` (a clock that only the test moves, ids from a seed), ``faults`` (a store that fails where it is told to),
``store_contract`` (the suite that every store passes), ``moto`` (an S3 server in this process; needs moto), ``model``
(a partition that is always right: a list of batches).
"""
