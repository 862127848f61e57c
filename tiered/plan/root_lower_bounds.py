"""Lower bounds of a partition's root that are known before it is read. A root below them is lost, or an older one.

A registry entry proves that the root was made with its topic. A disk stores the end of the root that was read back, its
own claim, and the root that it was restored from. These values only grow, and are stored only after a read of the root.
A root that is read *after* them is therefore never below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiered.format.root import Root  # with numpy, which what only asks a disk does not need

HELD_SEPARATOR = ","
HELD_LIMIT = 256
"""Limit of ids in one stored list: more are pending only after as many crashes in a row."""


@dataclass(frozen=True, slots=True)
class RootLowerBounds:
    """Lower bounds of a root; 0 and empty if unknown.

    ``made``: the registry says that roots were made with the topic. All other fields come from a disk. ``version``: the
    root that the disk was restored from. ``start_offset``, ``next_offset``: of a root that was read back.
    ``writer_epoch``: the disk's own claim. ``tokens``: tokens of its claims.
    """

    made: bool = False
    version: int = 0
    start_offset: int = 0
    next_offset: int = 0
    writer_epoch: int = 0
    tokens: tuple[str, ...] = ()

    @property
    def by_disk(self) -> bool:
        """True if a disk proves that the root has existed."""
        return bool(self.tokens) or max(self.version, self.start_offset, self.next_offset, self.writer_epoch) > 0

    def absent(self) -> str:
        """Return the reason why an absent root must have existed, as one sentence; ``""`` if there is none."""
        if self.next_offset > 0:
            return f"this disk saw offset {self.next_offset} committed in it"
        if self.by_disk:
            return "this disk has claimed the partition, or was restored from it"
        return "the registry entry says that it was made with its topic" if self.made else ""

    def contradictions(self, root: Root) -> Iterator[str]:
        """Yield one sentence for each bound that ``root`` is below; none for a current root.

        Yield one also if ``root`` has the disk's claim epoch, but a token that is not in ``tokens``. Such a root is
        older than one that was read before.
        """
        writer = root.writer
        if root.next_offset < self.next_offset:
            yield f"this disk saw offset {self.next_offset} committed, the root ends at {root.next_offset}"
        if root.start_offset < self.start_offset:
            yield f"this disk saw the log begin at {self.start_offset}, by the root it begins at {root.start_offset}"
        if root.version < self.version:
            yield f"this disk was restored from version {self.version}, the root has version {root.version}"
        if writer.epoch < self.writer_epoch:
            yield f"this disk holds claim {self.writer_epoch}, the root knows claims up to {writer.epoch}"
        same_claim = writer.epoch == self.writer_epoch > 0
        if same_claim and self.tokens and writer.token not in self.tokens:
            yield (
                f"claim {self.writer_epoch} was made with a token of this disk, in the root it is of "
                f"{writer.owner or 'an unknown owner'}"
            )


NOTHING_KNOWN = RootLowerBounds()


def held_ids(value: str) -> tuple[str, ...]:
    """Return the ids in ``value``, a list of ids as stored on disk, the oldest first."""
    return tuple(filter(None, value.split(HELD_SEPARATOR)))
