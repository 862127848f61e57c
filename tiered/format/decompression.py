"""Shared by all codecs: the default limit and the two errors for compressed bytes."""

from __future__ import annotations

from tiered.errors import CorruptionError

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Default limit of one batch after decompression. Kafka has none; its ``max.message.bytes`` is 1 MiB compressed.

Larger batches are never written compressed. Decompression stops with an error at the limit.
"""

Buffer = bytes | bytearray | memoryview


def too_large(codec: str, max_bytes: int) -> CorruptionError:
    """Return the error for data beyond the limit: a decompression bomb, or a limit that is too low."""
    return CorruptionError(
        f"{codec} data is larger than {max_bytes} bytes when decompressed",
        position=0,
        hint="no writer makes such a batch: it is damaged, or was made to fill the memory of its readers",
    )


def damaged(codec: str, why: object, position: int = 0) -> CorruptionError:
    """Return the error for data that the codec cannot have written; ``position`` counts from its first byte."""
    return CorruptionError(f"{codec} data is damaged: {why}", position=position)
