"""The newest offset of every key in the dirty part of a log, in bounded memory. Pure.

Keys are kept by digest, so that long keys cost no more than short ones: equal digests are equal keys. Kafka takes
MD5; here it is BLAKE2b of 128 bits, as fast, and nobody can make two keys that collide (with MD5 anybody can, and
the older of the two records would be lost).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from tiered.errors import ConfigError
from tiered.format.batch import BatchHeader, decode_records, verify_batch
from tiered.format.header import Buffer
from tiered.model import AbortedTxn
from tiered.plan.cleaned_txns import CleanedTxns

DEDUPE_BUFFER_BYTES = 128 * 1024 * 1024
"""Default memory of a map (Kafka's ``log.cleaner.dedupe.buffer.size``)."""

ENTRY_BYTES = 200
"""What one entry may cost: a digest (64), an offset (32), and its share of the table, at its worst while the table
grows and the old one stands beside the new one. Measured: 130 to 190."""

LOAD_FACTOR = 0.9
"""How much of the memory is used (Kafka's ``log.cleaner.io.buffer.load.factor``)."""

DIGEST_BYTES = 16


class OffsetMap:
    """Digest of the key -> newest offset. ``latest_offset`` is the last offset that the map speaks for."""

    def __init__(self, memory_bytes: int = DEDUPE_BUFFER_BYTES, *, load_factor: float = LOAD_FACTOR) -> None:
        if memory_bytes < ENTRY_BYTES or not 0 < load_factor <= 1:
            raise ConfigError(
                f"an offset map of {memory_bytes} bytes, filled to {load_factor}, holds no key",
                hint=f"at least {ENTRY_BYTES} bytes, and a load factor above 0 and at most 1",
            )
        self.capacity = max(int(memory_bytes // ENTRY_BYTES * load_factor), 1)
        self.latest_offset = -1
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def full(self) -> bool:
        """Whether no more is put; a key that is already there does not count as room (Kafka's test)."""
        return len(self._offsets) >= self.capacity

    @property
    def end_offset(self) -> int:
        """The end of this round, and where the next one begins: the new checkpoint."""
        return self.latest_offset + 1

    def put(self, key: bytes, offset: int) -> None:
        """``offset`` is the newest of ``key``. The caller looks at :attr:`full` first; offsets rise."""
        self._offsets[blake2b(key, digest_size=DIGEST_BYTES).digest()] = offset
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """The newest offset of ``key``; -1 if the dirty part does not hold it."""
        return self._offsets.get(blake2b(key, digest_size=DIGEST_BYTES).digest(), -1)

    def advance(self, offset: int) -> None:
        """The map speaks for everything up to ``offset``."""
        self.latest_offset = max(self.latest_offset, offset)


class OffsetMapBuilder:
    """Fills a map with the dirty part of a log, batch by batch, until it ends or the map is full.

    Control records and records of aborted transactions name no key. Stops in mid-batch when full: what was put is
    complete up to :attr:`OffsetMap.latest_offset`, and the next round goes on from there.
    """

    def __init__(self, offset_map: OffsetMap, *, start_offset: int, aborted: Iterable[AbortedTxn] = ()) -> None:
        self.offset_map = offset_map
        self.records_read = 0
        self.bytes_read = 0
        self._start = start_offset
        self._txns = CleanedTxns(aborted)
        offset_map.advance(start_offset - 1)

    def add(self, batch: Buffer, header: BatchHeader | None = None) -> bool:
        """Takes in one whole batch (the first may begin below the start); True: full, stop reading.

        Raises ``CorruptionError`` for a batch that is not intact.
        """
        header = verify_batch(batch, header)
        self.bytes_read += header.size_bytes
        if header.is_control:
            self.records_read += header.records_count
            self._txns.marker_is_idle(header, next(decode_records(batch), None))
        elif self._txns.is_aborted(header):
            self.records_read += header.records_count
        elif self._put_records(batch):
            return True
        self.offset_map.advance(header.last_offset)
        return False

    def end_segment(self, next_base_offset: int) -> None:
        """A segment was read to its end; ``next_base_offset`` follows: gaps between them hold nothing."""
        self.offset_map.advance(next_base_offset - 1)

    def _put_records(self, batch: Buffer) -> bool:
        offset_map, start = self.offset_map, self._start
        put = offset_map.put
        room = offset_map.capacity - len(offset_map)
        read = 0
        for record in decode_records(batch):
            key = record.key
            if key is not None and record.offset >= start:
                if room <= 0:
                    room = offset_map.capacity - len(offset_map)  # keys that were there already took none
                    if room <= 0:
                        self.records_read += read
                        return True
                put(key, record.offset)
                room -= 1
            read += 1
        self.records_read += read
        return False
