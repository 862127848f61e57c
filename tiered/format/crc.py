"""CRC-32C (Castagnoli), the checksum of every v2 batch, producer snapshot and index bundle."""

from __future__ import annotations

import crc32c as _crc32c


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """CRC-32C of ``data``, continuing from ``value`` (the CRC of what came before); unsigned 32 bits."""
    return _crc32c.crc32c(data, value)
