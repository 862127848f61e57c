"""What keeps the books of the collector, and the state of a log: changes that touch no row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiered.format.root import STATE_DELETING, STATE_OPEN, STATE_SEALED, Root
from tiered.format.trash import TrashEntry
from tiered.plan.commit import Outcome, Stamp, fenced, succeed
from tiered.plan.lifecycle import Reason, Refusal


@dataclass(frozen=True, slots=True)
class GcFloorIntent:
    """From now on what left the catalog up to ``version`` may go: whoever pins later pins a newer root."""

    version: int

    op = "gc_floor"

    def apply(self, root: Root, stamp: Stamp) -> Outcome:
        """Refused beyond the root's own version; NOTHING at or below the floor."""
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        if self.version > root.version:
            return Refusal(Reason.INVALID, f"{root.where}: a floor of {self.version} is beyond it")
        if self.version <= root.gc_floor:
            return Refusal(Reason.NOTHING, f"{root.where}: the floor is {root.gc_floor} already")
        return succeed(root, stamp, self.op, gc_floor=self.version)


@dataclass(frozen=True, slots=True)
class GcDoneIntent:
    """What ``entries`` name was deleted, every one acknowledged: exactly these leave the trash."""

    entries: tuple[TrashEntry, ...]

    op = "gc_done"

    def apply(self, root: Root, stamp: Stamp) -> Outcome:
        """Refused for an entry above the floor. Entries that are listed no more are left out; NOTHING without any."""
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        above = [entry for entry in self.entries if entry.removed_version > root.gc_floor]
        if above:
            return Refusal(
                Reason.INVALID,
                f"{root.where}: what left in version {above[0].removed_version} is above the floor {root.gc_floor}",
            )
        done = set(self.entries)
        kept = np.array([entry not in done for entry in root.trash], dtype=np.bool_)
        if kept.all():
            return Refusal(Reason.NOTHING, f"{root.where}: none of {len(done)} entries is in the trash")
        return succeed(root, stamp, self.op, trash=root.trash.where(kept))


_STEPS = {STATE_OPEN: (STATE_SEALED, STATE_DELETING), STATE_SEALED: (STATE_DELETING,), STATE_DELETING: ()}


@dataclass(frozen=True, slots=True)
class StateIntent:
    """Seals a log for a hand-over, or begins its destruction; neither is ever taken back."""

    state: str

    op = "state"

    def apply(self, root: Root, stamp: Stamp) -> Outcome:
        """Refused backwards; NOTHING if it is so."""
        refusal = fenced(root, stamp)
        if refusal is not None:
            return refusal
        if self.state == root.state:
            return Refusal(Reason.NOTHING, f"{root.where} is {root.state} already")
        if self.state not in _STEPS[root.state]:
            return Refusal(Reason.STATE, f"{root.where} is {root.state}: it cannot become {self.state}")
        return succeed(root, stamp, self.op, state=self.state)
