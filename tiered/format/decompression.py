"""What every codec's reader shares: the default limit and the two ways in which compressed bytes are refused."""

from __future__ import annotations

from tiered.errors import CorruptionError

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Default limit of one batch after decompression. Kafka has none; its ``max.message.bytes`` is 1 MiB compressed.

Nothing larger is written compressed, and what would grow beyond it is refused while it is decompressed.
"""

Buffer = bytes | bytearray | memoryview


def too_large(codec: str, max_bytes: int) -> CorruptionError:
    """The data would exceed the limit: a bomb, or a limit that is too low."""
    return CorruptionError(
        f"{codec} data is larger than {max_bytes} bytes when decompressed",
        position=0,
        hint="no writer makes such a batch: it is damaged, or was made to fill the memory of its readers",
    )


def damaged(codec: str, why: object, position: int = 0) -> CorruptionError:
    """The data is not what the codec wrote; ``position`` counts from its first byte."""
    return CorruptionError(f"{codec} data is damaged: {why}", position=position)
