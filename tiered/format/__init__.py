"""Encoders and decoders: Kafka's log formats and the catalog's. They open nothing and know no clock.

``batch`` (with ``header``, ``control``, ``legacy``, ``codecs``), the indexes and ``checkpoint`` are Kafka's;
``root``, ``bundle`` and ``keys`` are the remote tier's own. ``kernels`` holds the loops over single records.
"""
