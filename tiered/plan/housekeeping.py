"""Changes to a root that touch no row: the collector's bookkeeping, and the state of a log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiered.format.root import STATE_DELETING, STATE_OPEN, STATE_SEALED, Root
from tiered.model import TrashEntry
from tiered.plan.commit import Outcome, Stamp, fenced, succeed
from tiered.plan.ownership import Refusal, RefusalReason


@dataclass(frozen=True, slots=True)
class GcFloorIntent:
    """Rise of the floor: objects removed up to ``version`` may be deleted, as later pins are on newer roots."""

    version: int

    op = "gc_floor"

    def apply(self, root: Root, stamp: Stamp) -> Outcome:
        """Refuse beyond the root's own version; NOTHING at or below the floor."""
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        if self.version > root.version:
            return Refusal(RefusalReason.INVALID, f"{root.where}: a floor of {self.version} is beyond it")
        if self.version <= root.gc_floor:
            return Refusal(RefusalReason.NOTHING, f"{root.where}: the floor is {root.gc_floor} already")
        return succeed(root, stamp, self.op, gc_floor=self.version)


@dataclass(frozen=True, slots=True)
class GcDoneIntent:
    """End of a collection: the store acknowledged every deletion of ``entries``, and exactly these leave the trash."""

    entries: tuple[TrashEntry, ...]

    op = "gc_done"

    def apply(self, root: Root, stamp: Stamp) -> Outcome:
        """Refuse an entry above the floor. Entries no longer listed are ignored; NOTHING if all are."""
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        above = [entry for entry in self.entries if entry.removed_version > root.gc_floor]
        if above:
            return Refusal(
                RefusalReason.INVALID,
                f"{root.where}: an entry of version {above[0].removed_version} is above the floor {root.gc_floor}",
            )
        done = set(self.entries)
        kept = np.array([entry not in done for entry in root.trash], dtype=np.bool_)
        if kept.all():
            return Refusal(RefusalReason.NOTHING, f"{root.where}: none of {len(done)} entries is in the trash")
        return succeed(root, stamp, self.op, trash=root.trash.where(kept))


_STEPS = {STATE_OPEN: (STATE_SEALED, STATE_DELETING), STATE_SEALED: (STATE_DELETING,), STATE_DELETING: ()}


@dataclass(frozen=True, slots=True)
class StateIntent:
    """Sealing of a log for a hand-over, or the start of its destruction; neither is reversible."""

    state: str

    op = "state"

    def apply(self, root: Root, stamp: Stamp) -> Outcome:
        """Refuse a step backwards; NOTHING if the state is the same."""
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        if self.state == root.state:
            return Refusal(RefusalReason.NOTHING, f"{root.where} is {root.state} already")
        if self.state not in _STEPS[root.state]:
            return Refusal(RefusalReason.STATE, f"{root.where} is {root.state}: it cannot become {self.state}")
        return succeed(root, stamp, self.op, state=self.state)
