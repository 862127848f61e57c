"""Encoders and decoders of Kafka's log formats and of the catalog's objects. They do no I/O and read no clock.

Kafka's formats: ``batch`` (with ``header``, ``control``, ``legacy``, ``codecs``), the indexes and ``checkpoint``.
Formats of the remote tier: ``root``, ``bundle`` and ``keys``. ``kernels`` has the loops over single records.
"""
