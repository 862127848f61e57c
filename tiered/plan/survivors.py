"""Keyed compaction of a log in parts, for more keys than a map can hold: pure steps of its two phases.

::

    part of a log ── KeyScan ──> (digest, code) of each key's newest record ── a shuffle by digest ──┐
         └────── TxnEffect ──> txns_before of every group                                           │
    part of a log ── BatchFilter(Survivors, TxnsBefore) ──> what is left <── bitmap of the part <────┘

A *part* is a run of whole groups of segments (``plan.cleaning``). A *code* is the number of the part and the offset
from its start: codes rise with offsets. The newest record of a key in the dirty range survives; if there is none, all
its records in the clean range do. :class:`~tiered.plan.offset_map.OffsetMap` has the same rule for a whole log.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tiered.errors import ConfigError, CorruptionError
from tiered.format.batch import BatchHeader, decode_records, verify_batch
from tiered.format.header import Buffer
from tiered.format.kernel_values import BatchFilterResult, RunFilterResult
from tiered.format.kernels import crc32c
from tiered.model import AbortedTxn
from tiered.plan.offset_map import DIGEST_BYTES, CleanedTxns, TxnsBefore

Int64s = npt.NDArray[np.int64]

OFFSET_BITS = 40
"""Bits of a code for the offset from the start of the part."""

MAX_PART_OFFSETS = 1 << OFFSET_BITS
"""Limit of offsets in one part."""

MAX_PARTS = 1 << (63 - OFFSET_BITS)
"""Limit of parts in one round: a code is a positive 64-bit number."""

CHUNK_OFFSETS = 1 << 16
"""Offsets of one chunk of a bitmap; a chunk without survivors takes no room."""

_DENSE = 4096
"""Number of survivors at which a chunk's bits are shorter than their 16-bit numbers."""

_HEAD = struct.Struct("<4sIqqQI")
_CHUNK = struct.Struct("<QI")
_MAGIC = b"TSUR"


# -- phase 1: which key has its newest record where ------------------------------------------------------------------


class Pairs(NamedTuple):
    """Pairs of a key's digest and the code of one of its records. Digests are two columns, one for each half.

    A part is a range of the log that one task cleans. A code is one integer from the number of a part and the distance
    from the part's start.
    """

    high: Int64s
    low: Int64s
    codes: Int64s


class KeyScan:
    """Collector of :class:`Pairs` from the batches of one part, a range of the log that one task cleans.

    ``number``: index of the part. ``start``: its first offset. ``first_dirty``: start of the dirty range. Each key of
    that range gives one pair, with its newest record. Below it each record with a key gives a pair. ``most_keys``:
    number of pairs at which :attr:`is_full` becomes True. Call :meth:`drain` then, and at the end. A later drain may
    return a key again, with a newer record.
    """

    def __init__(self, number: int, start: int, *, first_dirty: int, most_keys: int) -> None:
        self.effect = TxnEffect(start, ())
        self.records_read = self.pairs_given = 0
        self._code = (number << OFFSET_BITS) - start
        self._first_dirty = first_dirty
        self._most = most_keys
        self._newest: dict[bytes, int] = {}
        self._digests: list[bytes] = []
        self._codes: list[int] = []

    def start(self, start: int, aborted: Iterable[AbortedTxn]) -> None:
        """Start a group of segments at offset ``start``. ``aborted``: index entries of transactions that touch the
        group.
        """
        self.effect = TxnEffect(start, aborted)

    @property
    def is_full(self) -> bool:
        """True if the number of collected pairs has reached ``most_keys``."""
        return len(self._newest) + len(self._codes) >= self._most

    def add(self, batch: Buffer, header: BatchHeader | None = None) -> None:
        """Add one batch with its records. Control records and aborted records give no pair.

        ``header``: the header of the batch; None: it is decoded here. Raises CorruptionError for a damaged batch.
        """
        header = verify_batch(batch, header)
        self.records_read += header.records_count
        if self.effect.hides(header, batch):
            return
        code, first_dirty, newest = self._code, self._first_dirty, self._newest
        for record in decode_records(batch):
            key, offset = record.key, record.offset
            if key is None:
                continue
            digest = blake2b(key, digest_size=DIGEST_BYTES).digest()
            if offset >= first_dirty:
                newest[digest] = code + offset
            else:
                self._digests.append(digest)
                self._codes.append(code + offset)

    def drain(self) -> Pairs:
        """Return all pairs that were collected, and remove them."""
        digests, codes = [*self._digests, *self._newest], [*self._codes, *self._newest.values()]
        self._digests, self._codes, self._newest = [], [], {}
        self.pairs_given += len(codes)
        halves = np.frombuffer(b"".join(digests), dtype="<i8").reshape(-1, 2)
        return Pairs(halves[:, 0].copy(), halves[:, 1].copy(), np.array(codes, dtype=np.int64))


class _Everybody(Container[int]):
    """Set of all producers."""

    def __contains__(self, producer: object) -> bool:
        return True


_STATES = ((False, False), (True, False), (False, True), (True, True))
"""Possible states of a producer: (has an unfinished transaction that commits, has one that aborts)."""


class TxnEffect:
    """Table of each producer's state after a group of segments, for every state that it may have before the group.

    So groups can be read in any order. A state is a pair: the producer has an unfinished transaction that commits, and
    one that aborts. ``start``: first offset of the group. ``aborted``: index entries of the transactions that touch the
    group.
    """

    def __init__(self, start: int, aborted: Iterable[AbortedTxn]) -> None:
        aborted = tuple(aborted)
        self._met: set[int] = set()
        self._passes = [
            CleanedTxns(
                aborted, TxnsBefore(start, _Everybody() if committed else (), _Everybody() if was_aborted else ())
            )
            for committed, was_aborted in _STATES
        ]

    def hides(self, header: BatchHeader, batch: Buffer) -> bool:
        """Add the next batch. Return True if its records are not compacted by key: it is a marker, or was aborted."""
        if header.is_control:
            self._met.add(header.producer_id)
            record = next(decode_records(batch), None)
            for one in self._passes:
                one.marker_is_unneeded(header, record)
            return True
        if not header.is_transactional:
            return False
        self._met.add(header.producer_id)
        hidden, *_ = [one.is_aborted(header) for one in self._passes]
        return hidden

    def as_json(self) -> dict[str, list[int]]:
        """Return, by producer id as text, the state after the group for each of the four states before it.

        A state is 1 with an unfinished transaction that commits, 2 with one that aborts, 3 with both, otherwise 0.
        :func:`txns_before` reads the result.
        """
        return {
            str(producer): [_STATES.index(one.seen_of(producer)) for one in self._passes]
            for producer in sorted(self._met)
        }


def txns_before(starts: Sequence[int], effects: Iterable[Mapping[str, Sequence[int]]]) -> list[TxnsBefore]:
    """Return the transaction state before each group of segments. ``starts``: first offsets of all groups, in order.

    ``effects``: results of :meth:`TxnEffect.as_json` of the same groups.
    """
    known: dict[int, int] = {}
    found: list[TxnsBefore] = []
    for start, effect in zip(starts, effects, strict=True):
        committed = tuple(sorted(producer for producer, state in known.items() if _STATES[state][0]))
        was_aborted = tuple(sorted(producer for producer, state in known.items() if _STATES[state][1]))
        found.append(TxnsBefore(start, committed, was_aborted))
        for name, after in effect.items():
            state = after[known.pop(int(name), 0)]
            if state:
                known[int(name)] = state
    return found


# -- between them: what survives -------------------------------------------------------------------------------------


def code_of(offset: int, starts: Sequence[int]) -> int:
    """Return the code of ``offset``, one integer from the number of its part and the distance from the part's start.

    ``starts``: first offsets of the parts, ascending. Offsets below all parts get the first code.
    """
    number = max(int(np.searchsorted(np.asarray(starts, dtype=np.int64), offset, side="right")) - 1, 0)
    return (number << OFFSET_BITS) + max(offset - starts[number], 0)


class SurvivorsBuilder:
    """Builder of the bitmap of one part, offsets ``start`` to ``end`` (exclusive), from rising codes of survivors.

    ``number``: index of the part. A code is one integer from this number and the distance from ``start``. Raises
    ConfigError for a part that is too large, and for a number above the limit.
    """

    def __init__(self, number: int, start: int, end: int) -> None:
        if not 0 <= number < MAX_PARTS or not 0 < end - start <= MAX_PART_OFFSETS:
            raise ConfigError(
                f"part {number} of offsets {start} to {end} of a compaction is too large or one too many",
                hint=f"change --task-bytes: a compaction has at most {MAX_PARTS} parts, of {MAX_PART_OFFSETS} offsets",
            )
        self._first = number << OFFSET_BITS
        self._start, self._end = start, end
        self._last = -1
        self._count = 0
        self._chunk = -1
        self._lows: list[Int64s] = []
        self._made: list[bytes] = []

    def add(self, codes: Int64s) -> None:
        """Add the codes of surviving records. Raises CorruptionError for codes of another part, or out of order."""
        if not len(codes):
            return
        at = codes - self._first
        if at[0] <= self._last or at[-1] >= self._end - self._start or (np.diff(at) <= 0).any():
            raise CorruptionError(
                f"records to keep for offsets {self._start} to {self._end} do not follow each other, or are outside: "
                f"{at[0]} to {at[-1]} after {self._last}, counted from offset {self._start}",
                offset=self._start,
                hint="run the same command again; no segment of these offsets was replaced",
            )
        self._last, self._count = int(at[-1]), self._count + len(at)
        chunks = at // CHUNK_OFFSETS
        bounds = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(at)]
        for low, high in itertools.pairwise(bounds):
            if int(chunks[low]) != self._chunk:
                self._close()
                self._chunk = int(chunks[low])
            self._lows.append(at[low:high] % CHUNK_OFFSETS)

    def finish(self) -> bytes:
        """Return the bytes of the bitmap's object, with a checksum."""
        self._close()
        body = b"".join(self._made)
        head = _HEAD.pack(_MAGIC, 1, self._start, self._end, self._count, crc32c(body))
        return head + body

    def _close(self) -> None:
        if not self._lows:
            return
        lows = np.concatenate(self._lows)
        data = lows.astype("<u2").tobytes()
        if len(lows) >= _DENSE:
            bits = np.zeros(CHUNK_OFFSETS, dtype=np.uint8)
            bits[lows] = 1
            data = np.packbits(bits, bitorder="little").tobytes()
        self._made.append(_CHUNK.pack(self._chunk, len(lows)) + data)
        self._lows = []


class Survivors:
    """Bitmap of the surviving records of a part, as the ``newest`` of :class:`~tiered.plan.batch_filter.BatchFilter`.

    ``latest_offset``: last offset that the round covers.
    """

    def __init__(self, data: bytes, start: int, end: int, *, key: str, latest_offset: int) -> None:
        """Decode ``data``, the bitmap of offsets ``start`` to ``end`` (exclusive) from the object ``key``.

        Raises CorruptionError if it is damaged, or of other offsets.
        """
        self.latest_offset = latest_offset
        self._start, self._end, self._key = start, end, key
        self._chunks: dict[int, tuple[int, int]] = {}
        self._data = data
        self._open = -1
        self._bits: Any = b""
        if len(data) < _HEAD.size:
            raise self._damaged("is cut short")
        magic, version, of_start, of_end, self.count, crc = _HEAD.unpack_from(data)
        if (magic, version) != (_MAGIC, 1) or crc32c(memoryview(data)[_HEAD.size :]) != crc:
            raise self._damaged("is not what was written")
        if (of_start, of_end) != (start, end):
            raise self._damaged(f"is one of offsets {of_start} to {of_end}")
        at = _HEAD.size
        while at < len(data):
            chunk, count = _CHUNK.unpack_from(data, at)
            at += _CHUNK.size
            self._chunks[chunk] = (at, count)
            at += CHUNK_OFFSETS // 8 if count >= _DENSE else 2 * count

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """Return True if the record at ``offset`` does not survive; ``key`` is not used.

        Raises CorruptionError for an offset outside the part.
        """
        del key
        if not self._start <= offset < self._end:
            raise self._damaged(f"is asked for offset {offset}")
        chunk, low = divmod(offset - self._start, CHUNK_OFFSETS)
        if chunk != self._open:
            self._open, self._bits = chunk, self._unpacked(chunk)
        return not self._bits[low >> 3] & (1 << (low & 7))

    def filter_batch(self, batch: Buffer, keeps_tombstones: bool, horizon_ms: int) -> BatchFilterResult | None:
        """Return None: the caller calls :meth:`is_superseded` for each record."""
        return None

    def filter_run(self, batches: Buffer, now_ms: int, horizon_ms: int, boundary: int) -> RunFilterResult | None:
        """Return None: the caller filters batch by batch."""
        return None

    def _unpacked(self, chunk: int) -> Buffer:
        at, count = self._chunks.get(chunk, (0, 0))
        if count >= _DENSE:
            return self._data[at : at + CHUNK_OFFSETS // 8]
        bits = np.zeros(CHUNK_OFFSETS, dtype=np.uint8)
        bits[np.frombuffer(self._data, dtype="<u2", count=count, offset=at)] = 1
        return np.packbits(bits, bitorder="little").tobytes()

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(
            f"the list of records to keep for offsets {self._start} to {self._end} is damaged: {self._key} {what}",
            path_or_key=self._key,
            position=0,
            offset=self._start,
            hint="run the same command again; no segment of these offsets was replaced",
        )


# -- parts, and what they cost ---------------------------------------------------------------------------------------

PAIR_BYTES = 22.1
"""Compressed bytes that Spark writes for one pair of phase 1, measured over 426,647 pairs of 600,000 records."""

SURVIVOR_BYTES = 5.5
"""Compressed bytes that Spark writes for one survivor, measured over 147,283."""
