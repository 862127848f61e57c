"""What sinks decided and what of it landed: each batch in each partition that it touches once, whole, in its order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from tests.sim.bucket.violation import Violated
from tiered.format.decision import COMMITTED, Decision
from tiered.format.keys import DecisionKey, decision_key, parse_decision_key, split_uid
from tiered.model import Row

Batch = tuple[str, int]
"""A transaction id, and which of its batches."""
Target = tuple[UUID, int]
"""A partition."""


class Batches:
    """``decisions``: what each batch came to, the first decision to commit it."""

    def __init__(self) -> None:
        self.decisions: dict[Batch, Decision] = {}
        self._decided: dict[tuple[int, int], Batch] = {}
        self._landed: dict[tuple[Batch, Target], tuple[int, int]] = {}

    def decided(self, decision: Decision) -> None:
        """A later one about a batch that is committed everywhere may come of who was given up: nothing comes of it."""
        batch = decision.txn, decision.batch
        if decision.state == COMMITTED and batch not in self.decisions:
            self.decisions[batch] = decision
            self._decided |= dict.fromkeys(decision.uids, batch)

    def of_uid(self, uid: str) -> Batch | None:
        """The batch that is to commit, or has committed, what has this uid."""
        return self._decided.get(split_uid(uid))

    def land(self, where: str, target: Target, rows: Sequence[Row]) -> None:
        """Staged rows that one commit brought: all that one decision names of this partition, side by side."""
        ordered = sorted(rows, key=lambda row: row.base)
        ids = [(row.id_hi, row.id_lo) for row in ordered]
        batch = self._decided.get(ids[0])
        if batch is None:
            raise Violated(f"{where}: {ordered[0]} was committed and never decided")
        if ids != [(row.id_hi, row.id_lo) for row in self.decisions[batch].partitions.get(target, ())]:
            raise Violated(f"{where}: batch {batch} was committed in part, out of order, or with more than was decided")
        place = ordered[0].base, ordered[-1].next
        if self._landed.setdefault((batch, target), place) != place:
            raise Violated(f"{where}: batch {batch} was committed twice")
        later = [other for other, at in self._landed if at == target and other[0] == batch[0] and other > batch]
        if later:
            raise Violated(f"{where}: batch {batch} was committed after {max(later)}")

    def place(self, batch: Batch, target: Target) -> tuple[int, int] | None:
        """The offsets that a batch took in a partition; None if it is not there."""
        return self._landed.get((batch, target))

    def unfinished(self, there: set[Target]) -> list[Decision]:
        """Decisions to commit that some partition of ``there`` lacks."""
        return [
            decision
            for batch, decision in self.decisions.items()
            if any(target in there and (batch, target) not in self._landed for target in decision.partitions)
        ]

    def needless(self, keys: Iterable[str]) -> list[str]:
        """Of the decisions among ``keys`` those about a batch before one of the same id that is committed."""
        listed = [parsed for key in keys if (parsed := parse_decision_key(key)) is not None]
        newest: dict[str, DecisionKey] = {}
        for parsed in listed:
            newest[parsed.txn] = max(parsed, newest.get(parsed.txn, parsed))
        done = {txn: last.batch for txn, last in newest.items() if (txn, last.batch) in self.decisions}
        return [decision_key(*parsed) for parsed in listed if parsed.batch < done.get(parsed.txn, 0)]
