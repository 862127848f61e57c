"""Batches as old clients sent them."""

from __future__ import annotations

from tests.unit.format import legacy
from tiered.format.batch import encode_batch
from tiered.format.codecs import Codec
from tiered.model import NewRecord

UNTIMED = encode_batch([NewRecord(b"v", None, -1)])


def message(offset: int, value: bytes, *, magic: int = 1, timestamp: int = 5, codec: int = 0) -> bytes:
    """A message of format v0 or v1 without a key."""
    return legacy.message(magic, offset, None, value, timestamp, codec)


def wrapper(last_offset: int, *values: bytes) -> bytes:
    """A compressed v1 message set that ends at ``last_offset``."""
    inner = b"".join(message(i, value) for i, value in enumerate(values))
    return legacy.wrapper(1, last_offset, inner, Codec.GZIP, 5)
