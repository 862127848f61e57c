"""CRC-32C (Castagnoli), the checksum of every v2 batch, producer snapshot and index bundle.

``crc32c(data, value=0)`` takes any buffer and continues from ``value``, the CRC of what came before; the result is
unsigned, 32 bits. It is the function of the kernels as it is: a wrapper would cost as much as the CRC of a record.
"""

from __future__ import annotations

from tiered.format.kernels import crc32c as crc32c

__all__ = ["crc32c"]
