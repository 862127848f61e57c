"""Side files of a ``.log``: the aborted transactions whose markers it holds, and the producers at its end. Pure.

::

    known beginning ─> Follower: each batch of a producer ─> ReplayedSegment ─┬─ judge_txn_index   .txnindex
    (snapshot, or nothing before offset 0)                             └─ judge_snapshot    {end}.snapshot

Both files are derived from the log. Compaction may remove the first batches of a transaction, and producers may expire,
so a right file may differ from the one derived now. A file is wrong if it hides committed records, or shows aborted or
undecided ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format.kernels import crc32c
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from tiered.format.segment_indexes import TXN_ENTRY_BYTES, decode_txns, encode_txns
from tiered.model import AbortedTxn
from tiered.plan.producer import NO_OFFSET, ProducerBatch
from tiered.plan.producer_state import ProducerSnapshot, ProducerState
from tiered.plan.visibility import open_firsts

NO_PRODUCERS = encode_snapshot(())
"""Snapshot of a log without producers: not worth an object in the bucket."""


class ReplayedSegment(NamedTuple):
    """Result of the replay of one segment. A marker is named by (producer id, offset).

    ``aborted``: transactions that abort in this segment. ``unseen``: markers of transactions that were open at the
    start of the replay and have no batch in it. ``orphans``: ABORT markers of unknown transactions. ``producers``:
    those at the segment's end. ``ended``: offset of each producer's last marker. ``whole``: the state at the start of
    the replay was complete. Otherwise producers may be missing, and an orphan may have data before the start.
    """

    aborted: tuple[AbortedTxn, ...]
    unseen: frozenset[tuple[int, int]]
    orphans: tuple[tuple[int, int], ...]
    producers: tuple[ProducerEntry, ...]
    ended: Mapping[int, int]
    whole: bool


class Follower:
    """Replay of a partition's batches, in offset order, that tracks its producers without any check.

    ``known``: producers before the first batch; None: without producers. ``whole``: ``known`` is the complete state
    before that batch.
    """

    def __init__(self, known: ProducerSnapshot | None = None, *, whole: bool) -> None:
        self._state = ProducerState()
        self.restart(known, whole=whole)

    def restart(self, known: ProducerSnapshot | None = None, *, whole: bool) -> None:
        """Start again at a segment, with the producers in ``known``; None: without producers.

        ``whole``: ``known`` is the complete state before the segment.
        """
        self._state.load(known, log_start=0, now_ms=0)  # at time 0 no producer has expired
        self._whole = whole
        self._ended: dict[int, int] = {}
        self._told = set(open_firsts(() if known is None else known.entries))
        self._unseen: set[tuple[int, int]] = set()
        self._aborted: list[AbortedTxn] = []
        self._orphans: list[tuple[int, int]] = []

    def see(self, batch: ProducerBatch | None) -> None:
        """Apply the next batch. None, for a batch without a producer, changes nothing."""
        if batch is None:
            return
        txn = self._state.replay(batch)
        marker = (batch.producer_id, batch.base_offset)
        if batch.marker is not None:
            self._ended[batch.producer_id] = batch.base_offset
            if batch.producer_id in self._told:
                self._unseen.add(marker)
        self._told.discard(batch.producer_id)
        if batch.marker is None or not batch.marker.abort:
            return
        entry = None if txn is None else txn.index_entry
        if entry is None:
            self._orphans.append(marker)
        else:
            self._aborted.append(entry)

    def producers(self) -> tuple[ProducerEntry, ...]:
        """Return the current producers."""
        return self._state.entries()

    def end_segment(self) -> ReplayedSegment:
        """Return the result for the segment that ends here, and start the next segment with the current producers."""
        replayed = ReplayedSegment(
            tuple(self._aborted),
            frozenset(self._unseen),
            tuple(self._orphans),
            self._state.entries(),
            dict(self._ended),
            self._whole,
        )
        self._aborted, self._orphans, self._unseen = [], [], set()
        return replayed


def txns_flaw(entries: Sequence[AbortedTxn], followed: ReplayedSegment, *, all_followed: bool = False) -> str | None:
    """Return why ``entries`` cannot be the transaction index of the replayed segment; None if they can.

    Each aborted transaction needs an entry, which begins at its first record in the log or earlier. No entry may exist
    without its marker, because it would hide later committed records of its producer.
    ``all_followed``: the whole remaining log was replayed. An aborted transaction without a batch in it then needs no
    entry.
    """
    missing = {(txn.producer_id, txn.last_offset): txn for txn in followed.aborted}
    orphans = set(followed.orphans)
    for entry in entries:
        marker = (entry.producer_id, entry.last_offset)
        known = missing.pop(marker, None)
        if known is None and marker not in orphans:
            return f"producer {entry.producer_id} has no ABORT marker at offset {entry.last_offset}"
        if known is not None and entry.first_offset > known.first_offset:
            return (
                f"the transaction that was aborted at offset {entry.last_offset} begins at {known.first_offset}, "
                f"its entry says {entry.first_offset}"
            )
        orphans.discard(marker)
    if all_followed:
        missing = {marker: txn for marker, txn in missing.items() if marker not in followed.unseen}
    if missing:
        offset = min(offset for _, offset in missing)
        return f"{len(missing)} of {len(followed.aborted)} aborted transactions have no entry, the first at {offset}"
    if orphans and not followed.whole:
        offset = min(offset for _, offset in orphans)
        return f"the transaction that was aborted at offset {offset} has no entry, and its beginning is not known"
    return None


def producers_flaw(entries: Sequence[ProducerEntry], followed: ReplayedSegment) -> str | None:
    """Return why ``entries`` cannot be the producers at the end of the segment; None if they can.

    ``entries`` must have each open transaction, otherwise its undecided records would be shown. No entry may have an
    open transaction that is decided: the records after it would be hidden. Producers without an open transaction may be
    missing.
    """
    noted, followed_firsts = open_firsts(entries), open_firsts(followed.producers)
    for producer_id, first in followed_firsts.items():
        if producer_id not in noted:
            return f"the transaction of producer {producer_id} that begins at offset {first} is open, and has no entry"
        if noted[producer_id] > first:
            return f"the open transaction of producer {producer_id} begins at {first}, not at {noted[producer_id]}"
    for producer_id, first in noted.items():
        marker = followed.ended.get(producer_id, NO_OFFSET)
        if producer_id not in followed_firsts and marker > first:
            return f"the transaction of producer {producer_id} that begins at {first} was decided at offset {marker}"
    return None


class SideFileVerdict(NamedTuple):
    """Result of the check of a side file. ``flaw``: fault of the file as a sentence, None if the file is right.

    ``data``: content of a right file; otherwise the content derived from the log. ``known``: the derived content is
    complete. ``proven``: the file is wrong, whatever came before the segment. Without a flaw both are True.
    """

    data: bytes
    flaw: str | None = None
    known: bool = True
    proven: bool = True


def judge_txn_index(
    found: bytes,
    base_offset: int,
    followed: ReplayedSegment,
    noted_crc: int | None = None,
    *,
    all_followed: bool = False,
) -> SideFileVerdict:
    """Check a ``.txnindex`` against the replayed segment. ``found``: content of the file, empty if absent.

    ``noted_crc``: the CRC32C that the file should have, None if unknown. ``all_followed``: the whole remaining log was
    replayed. An aborted transaction without a batch in it then needs no entry.
    """
    flaw: str | None
    proven = True
    if len(found) % TXN_ENTRY_BYTES:
        flaw = f"it has {len(found)} bytes, no whole number of entries"
    else:
        try:
            entries = decode_txns(found, base_offset)
            flaw = txns_flaw(entries, followed, all_followed=all_followed)
            proven = txns_flaw(entries, followed._replace(whole=True), all_followed=all_followed) is not None
        except CorruptionError as damage:
            flaw = damage.message
    if flaw is None:
        return SideFileVerdict(found)
    encoded = encode_txns(followed.aborted)
    known = followed.whole or not followed.orphans or crc32c(encoded) == noted_crc
    return SideFileVerdict(encoded, flaw, known, proven)


def judge_snapshot(
    found: bytes | None, followed: ReplayedSegment, noted_crc: int | None = None, *, expected: bool = False
) -> SideFileVerdict:
    """Check a ``.snapshot`` against the replayed segment. ``found``: content of the file, None if absent.

    ``noted_crc``: the CRC32C that the file should have, None if unknown. ``expected``: the file should exist. An absent
    file is a flaw if the replay has producers, or if it is expected and the replay is not ``whole``. The result's
    ``data`` is empty if there are no producers.
    """
    flaw: str | None = "it is gone"
    if found is not None:
        try:
            flaw = producers_flaw(decode_snapshot(found), followed)
        except CorruptionError as damage:
            flaw = damage.message
    elif not followed.producers and (followed.whole or not expected):
        flaw = None
    if flaw is None:
        return SideFileVerdict(b"" if found is None or found == NO_PRODUCERS else found)
    encoded = encode_snapshot(followed.producers)
    known = followed.whole or crc32c(encoded) == noted_crc
    proven = found is not None or bool(followed.producers)
    return SideFileVerdict(encoded if followed.producers else b"", flaw, known, proven)
