"""What a batch of a sink decided, for ever: which staged segments are its records in each partition, in order.

The object ``txn/{id}/{batch}`` is made create-only before any partition is changed: a replay that staged other segments
for the same batch finds it and commits those that it names. Written by a collector instead, it says ``aborted``: what
it names is deleted and can never be committed. A batch whose newest decision is an abort may be decided again under the
next generation, by whoever staged something that no abort names.

A container (``format.container``) with the table ``rows``: the rows of all partitions, one partition after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from tiered.format.container import TableLayout, pack, unpack
from tiered.format.fields import HEX_128, INT32, NUMBER, TEXT, Kind, Listed
from tiered.format.keys import MAX_BATCH, check_txn, decision_key
from tiered.format.rows import ROW_COLUMNS, Rows
from tiered.model import Row

MAX_PARTITIONS = 100_000
"""Partitions of one batch."""

COMMITTED = "committed"
ABORTED = "aborted"


class Target(NamedTuple):
    """A partition that a batch writes to."""

    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class Decision:
    """``partitions``: staged rows (``plan.stage``) by partition; of an abort only their ids count.

    ``seen``: the version that the root of each partition had before the decision was made. ``generation``: how many
    aborts of the same batch there were before.
    """

    txn: str
    batch: int
    state: str
    partitions: Mapping[tuple[UUID, int], tuple[Row, ...]]
    seen: Mapping[tuple[UUID, int], int] = field(default_factory=dict)
    generation: int = 0

    @property
    def key(self) -> str:
        """Where it lies."""
        return decision_key(self.txn, self.batch, self.generation)

    @property
    def uids(self) -> set[tuple[int, int]]:
        """Both halves of the ids of everything that it names."""
        return {(row.id_hi, row.id_lo) for rows in self.partitions.values() for row in rows}


_ROWS = TableLayout("rows", ROW_COLUMNS)
_HEADER = {
    "txn": TEXT,
    "batch": Kind(int, 0, MAX_BATCH),
    "state": TEXT,
    "generation": INT32,
    "partitions": Listed({"topic_id": HEX_128, "partition": INT32, "seen": NUMBER, "rows": INT32}, MAX_PARTITIONS),
}


def encode_decision(decision: Decision) -> bytes:
    """The object's bytes. Raises ConfigError for an id that no key can hold, or if it is too large."""
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
    """A decision from the bytes of the object ``key``.

    Raises CorruptionError (key and position) for damaged or foreign bytes, also for another batch's decision (by
    ``key``), ConfigError for one that only a newer release can read.
    """
    container = unpack(data, lambda _: (_ROWS,), key=key)
    header = container.header
    values = header.take(_HEADER)
    if values["state"] not in (COMMITTED, ABORTED):
        header.refuse("state", f"is neither {COMMITTED} nor {ABORTED}")
    rows = Rows(container.tables[_ROWS.name])
    counts = [count for *_, count in values["partitions"]]
    if sum(counts) != len(rows):
        header.refuse("partitions", f"name {sum(counts)} rows, there are {len(rows)}")
    partitions: dict[tuple[UUID, int], tuple[Row, ...]] = {}
    seen: dict[tuple[UUID, int], int] = {}
    listed, at = list(rows), 0
    for topic_id, partition, version, count in values["partitions"]:
        target = Target(UUID(int=topic_id), partition)
        if target in partitions:
            header.refuse("partitions", f"names {topic_id:032x}-{partition} twice")
        partitions[target], seen[target] = tuple(listed[at : at + count]), version
        at += count
    decision = Decision(
        values["txn"], values["batch"], values["state"], MappingProxyType(partitions), MappingProxyType(seen),
        values["generation"],
    )  # fmt: skip
    if decision.key != key:
        header.refuse("txn", f"is that of {decision.key}: the object was copied")
    return decision
