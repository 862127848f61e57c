"""CRC-32C (Castagnoli), the checksum of every v2 batch, producer snapshot and index bundle.

``crc32c(data, value=0)`` takes any buffer and returns an unsigned 32-bit number. ``value`` is the CRC of the bytes
before ``data``. The kernels' function is re-exported unwrapped: a wrapper would cost as much as the CRC of a record.
"""

from __future__ import annotations

from tiered.format.kernels import crc32c as crc32c

__all__ = ["crc32c"]
