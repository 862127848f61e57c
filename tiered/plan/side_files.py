"""What must stand beside a ``.log``: the aborted transactions whose markers it holds, the producers at its end. Pure.

::

    known beginning ─> Follower: each batch of a producer ─> Followed ─┬─ judge_txn_index   .txnindex
    (snapshot, or nothing before offset 0)                             └─ judge_snapshot    {end}.snapshot

The log is the truth: both files are derived from it. Compaction may take the first batches of a transaction, expiry may
take producers, so that a file need not equal what the log tells now. It must not hide what is committed, nor show what
is aborted or undecided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format.crc import crc32c
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from tiered.format.txn_index import TXN_ENTRY_BYTES, decode_txns, encode_txns
from tiered.model import AbortedTxn
from tiered.plan.producer import NO_OFFSET, ProducerBatch
from tiered.plan.producer_state import ProducerState, Snapshot
from tiered.plan.visibility import open_firsts

NO_PRODUCERS = encode_snapshot(())
"""What a roll leaves of a log without producers: not worth a place in the bucket."""


class Followed(NamedTuple):
    """What the batches of one segment tell.

    ``aborted``: transactions that end here. ``unseen``: (producer id, marker) of those of them whose data was not among
    the batches that were followed. ``orphans``: (producer id, marker) of ABORT markers of which nothing is known.
    ``producers``: those at the segment's end. ``ended``: offset of each producer's last marker. ``whole``: everything
    before the segment was known; only then does an orphan have no data anywhere, and are the producers complete.
    """

    aborted: tuple[AbortedTxn, ...]
    unseen: frozenset[tuple[int, int]]
    orphans: tuple[tuple[int, int], ...]
    producers: tuple[ProducerEntry, ...]
    ended: Mapping[int, int]
    whole: bool


class Follower:
    """Follows the producers of one partition over its batches, in offset order. No rule can refuse a batch."""

    def __init__(self, known: Snapshot | None = None, *, whole: bool) -> None:
        self._state = ProducerState()
        self.restart(known, whole=whole)

    def restart(self, known: Snapshot | None = None, *, whole: bool) -> None:
        """Forgets what it saw: a segment begins before which ``known`` is all there is, if ``whole``."""
        self._state.load(known, log_start=0, now_ms=0)  # at time 0 nobody has expired
        self._whole = whole
        self._ended: dict[int, int] = {}
        self._told = set(open_firsts(() if known is None else known.entries))
        self._unseen: set[tuple[int, int]] = set()
        self._aborted: list[AbortedTxn] = []
        self._orphans: list[tuple[int, int]] = []

    def see(self, batch: ProducerBatch | None) -> None:
        """The next batch; None: no producer wrote it."""
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
        """Return the producers as they are now."""
        return self._state.entries()

    def end_segment(self) -> Followed:
        """What the segment told; the next one begins."""
        told = Followed(
            tuple(self._aborted),
            frozenset(self._unseen),
            tuple(self._orphans),
            self._state.entries(),
            dict(self._ended),
            self._whole,
        )
        self._aborted, self._orphans, self._unseen = [], [], set()
        return told


def txns_flaw(entries: Sequence[AbortedTxn], followed: Followed, *, all_followed: bool = False) -> str | None:
    """Why ``entries`` cannot be the transaction index of the segment; None if they can.

    ``all_followed``: all that is left of the log was; a transaction whose data was not seen needs no entry then.

    Each aborted transaction has its entry, from its first record in the log or an earlier one that compaction took;
    no entry stands without its marker, because it would hide what its producer committed afterwards.
    """
    missing = {(txn.producer_id, txn.last_offset): txn for txn in followed.aborted}
    orphans = set(followed.orphans)
    for entry in entries:
        marker = (entry.producer_id, entry.last_offset)
        known = missing.pop(marker, None)
        if known is None and marker not in orphans:
            return f"no ABORT marker of producer {entry.producer_id} stands at offset {entry.last_offset}"
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


def producers_flaw(entries: Sequence[ProducerEntry], followed: Followed) -> str | None:
    """Why ``entries`` cannot be the producers at the end of the segment; None if they can.

    A transaction that is open and not in it would show what is undecided, one in it that was decided would hide what
    follows. One that compaction took whole may stay open in it; producers without one may have expired.
    """
    noted, told = open_firsts(entries), open_firsts(followed.producers)
    for producer_id, first in told.items():
        if producer_id not in noted:
            return f"the transaction of producer {producer_id} that begins at offset {first} is open, and not in it"
        if noted[producer_id] > first:
            return f"the open transaction of producer {producer_id} begins at {first}, not at {noted[producer_id]}"
    for producer_id, first in noted.items():
        marker = followed.ended.get(producer_id, NO_OFFSET)
        if producer_id not in told and marker > first:
            return f"the transaction of producer {producer_id} that begins at {first} was decided at offset {marker}"
    return None


class Judged(NamedTuple):
    """A file beside a segment. ``flaw`` None: it is right, and ``data`` is its bytes.

    Else ``data`` is what the log tells, and ``known`` whether that is all there is to tell. ``proven``: whatever came
    before the segment, and nobody knows, does not make it right.
    """

    data: bytes
    flaw: str | None = None
    known: bool = True
    proven: bool = True


def judge_txn_index(
    found: bytes, base_offset: int, followed: Followed, noted_crc: int | None = None, *, all_followed: bool = False
) -> Judged:
    """``found``: the file, empty if there is none. ``noted_crc``: CRC32C of what it should be, if somebody noted it.

    ``all_followed`` as in :func:`txns_flaw`.
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
        return Judged(found)
    told = encode_txns(followed.aborted)
    known = followed.whole or not followed.orphans or crc32c(told) == noted_crc
    return Judged(told, flaw, known, proven)


def judge_snapshot(
    found: bytes | None, followed: Followed, noted_crc: int | None = None, *, expected: bool = False
) -> Judged:
    """``found``: the file, None if there is none. ``expected``: there should be one, even if the log names nobody."""
    flaw: str | None = "it is gone"
    if found is not None:
        try:
            flaw = producers_flaw(decode_snapshot(found), followed)
        except CorruptionError as damage:
            flaw = damage.message
    elif not followed.producers and (followed.whole or not expected):
        flaw = None
    if flaw is None:
        return Judged(b"" if found is None or found == NO_PRODUCERS else found)
    told = encode_snapshot(followed.producers)
    known = followed.whole or crc32c(told) == noted_crc
    proven = found is not None or bool(followed.producers)
    return Judged(told if followed.producers else b"", flaw, known, proven)
