"""Bytes to values and back: Kafka's log formats and the catalog's. Opens nothing, knows no clock.

``batch`` (with ``header``, ``control``, ``legacy``, ``codecs``), the indexes and ``checkpoint`` are Kafka's;
``root``, ``bundle`` and ``keys`` are the remote tier's own. ``kernels`` holds the loops over single records.
"""
