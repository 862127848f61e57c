"""The permanent decision about one batch of a sink: the staged segments, in order, that become its records.

The object ``txn/{id}/{batch}`` is created with create-only semantics before any partition is changed. A replay that
staged other segments for the same batch finds the decision and commits the segments in it. A collector writes
``aborted`` instead: the named segments are deleted and can never be committed. If the newest decision of a batch is an
abort, a writer with staged segments that no abort names may decide again under the next generation.

A framed object (``format.framed_object``) with the table ``rows``: the concatenated rows of all partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from tiered.format.framed_object import TableLayout, pack, unpack
from tiered.format.json_schema import HEX_128, INT32, NUMBER, TEXT, ListOf, ValueType
from tiered.format.keys import MAX_BATCH, check_txn, decision_key
from tiered.format.rows import ROW_COLUMNS, Rows
from tiered.model import Row

MAX_PARTITIONS = 100_000
"""Limit of partitions in one batch."""

COMMITTED = "committed"
ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision about one batch of a sink. ``txn``: the sink's transaction id. ``state``: ``COMMITTED`` or ``ABORTED``.

    ``partitions``: rows of the staged segments by partition; an abort uses only their ids. ``seen``: version of each
    partition's root before the decision. ``generation``: number of earlier aborts of the batch.
    """

    txn: str
    batch: int
    state: str
    partitions: Mapping[tuple[UUID, int], tuple[Row, ...]]
    seen: Mapping[tuple[UUID, int], int] = field(default_factory=dict)
    generation: int = 0

    @property
    def key(self) -> str:
        """Key of the decision's object."""
        return decision_key(self.txn, self.batch, self.generation)

    @property
    def uids(self) -> set[tuple[int, int]]:
        """Return the ids of all segments in the decision, each as its two 64-bit halves."""
        return {(row.id_hi, row.id_lo) for rows in self.partitions.values() for row in rows}


_ROWS = TableLayout("rows", ROW_COLUMNS)
_HEADER = {
    "txn": TEXT,
    "batch": ValueType(int, 0, MAX_BATCH),
    "state": TEXT,
    "generation": INT32,
    "partitions": ListOf({"topic_id": HEX_128, "partition": INT32, "seen": NUMBER, "rows": INT32}, MAX_PARTITIONS),
}


def encode_decision(decision: Decision) -> bytes:
    """Return the bytes of the decision's object. Raises ConfigError if it is too large, or ``txn`` fits no key."""
    targets = sorted(decision.partitions, key=lambda target: (target[0].hex, target[1]))
    described = [
        [target[0].hex, target[1], decision.seen.get(target, 0), len(decision.partitions[target])] for target in targets
    ]
    header = {
        "txn": check_txn(decision.txn),
        "batch": decision.batch,
        "state": decision.state,
        "generation": decision.generation,
        "partitions": described,
    }
    rows = Rows.from_rows([row for target in targets for row in decision.partitions[target]])
    return pack(header, [rows.packed(_ROWS)])


def decode_decision(data: bytes, *, key: str) -> Decision:
    """Decode the decision in the object ``key``.

    Raises CorruptionError (key and position) for damaged or foreign bytes, and for another batch's decision (by
    ``key``). Raises ConfigError for a newer format.
    """
    header, tables = unpack(data, lambda _: (_ROWS,), key=key)
    values = header.checked_fields(_HEADER)
    if values["state"] not in (COMMITTED, ABORTED):
        header.refuse("state", f"is neither {COMMITTED} nor {ABORTED}")
    rows = Rows(tables[_ROWS.name])
    counts = [count for *_, count in values["partitions"]]
    if sum(counts) != len(rows):
        header.refuse("partitions", f"should have {sum(counts)} rows, but {len(rows)} are there")
    partitions: dict[tuple[UUID, int], tuple[Row, ...]] = {}
    seen: dict[tuple[UUID, int], int] = {}
    listed, at = list(rows), 0
    for topic_id, partition, version, count in values["partitions"]:
        target = UUID(int=topic_id), partition
        if target in partitions:
            header.refuse("partitions", f"names {topic_id:032x}-{partition} twice")
        partitions[target], seen[target] = tuple(listed[at : at + count]), version
        at += count
    decision = Decision(
        values["txn"], values["batch"], values["state"], MappingProxyType(partitions), MappingProxyType(seen),
        values["generation"],
    )  # fmt: skip
    if decision.key != key:
        header.refuse("txn", f"belongs to {decision.key}: the object was copied")
    return decision
