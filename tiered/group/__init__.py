"""Groups of consumers that share the partitions of their topics. They communicate only by objects in the bucket.

::

    heartbeat ── PUT member ── GET plan if changed ── LIST members ── plan: who reads what ── claim free partitions
    commit    ── PUT partition, If-Match: position and owner are one object

Members agree on one *plan* by compare-and-swap. The object of a partition has its owner and its position.
"""
