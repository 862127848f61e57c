"""Groups of consumers that share the partitions of their topics with nothing but a bucket.

::

    heartbeat ── PUT member ── GET plan if changed ── LIST members ── plan: who reads what ── take what is free
    commit    ── PUT partition, If-Match: position and owner are one object

Members agree on one *plan* by compare-and-swap. The owner of a partition stands in its object, with the position.
"""
