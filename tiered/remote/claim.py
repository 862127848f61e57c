"""Claims as their holder sees them: the proof kept on the volume, and the names of a partition's owners.

A claim carries a random token and every append commit an id. Both are passed to ``persist`` and must be durable on the
volume *before* the root that carries them is sent. Written afterwards, a crash in between would lock the rightful owner
out. ``persist`` replaces opaque text (None: unchanged). The text holds the last id that is known to be in the root, and
all ids that may be on their way. So the volume can prove whichever of them landed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from tiered.format.root import RoleState, Root
from tiered.plan.ownership import LOCAL_VOLUME, SPARK_VOLUME, VolumeProof, hold

Persist = Callable[[str | None, str | None], None]
"""``persist(token, last_append)`` returns once both are fsynced. None leaves one unchanged. May raise."""


def owner_of(program: str) -> str:
    """Return the holder's name in a claim of this process: ``host:pid`` and the program."""
    return f"{socket.gethostname()}:{os.getpid()} {program}"


@dataclass(frozen=True, slots=True)
class Claim:
    """Granted claim. ``leader_epoch``: under which this volume writes from ``next_offset`` on.

    ``resumes``: the local log must begin at ``next_offset``, under ``leader_epoch`` (a fresh volume). ``previous``: the
    role before this claim. ``dated_ahead``: a sentence if the catalog's date was ahead of the store's clock before,
    ``""`` if not.
    """

    epoch: int
    leader_epoch: int
    next_offset: int
    resumes: bool
    previous: RoleState
    root: Root
    dated_ahead: str = ""

    @property
    def not_recovered(self) -> str:
        """Return a sentence about records that a fresh volume may lack, ``""`` if none can be missing.

        None is missing if the claim before was this volume's own, a sink's (whose records are all objects), a handover,
        or that of a repair, which has no volume.
        """
        before = self.previous.volume
        if not self.resumes or not self.previous.epoch:
            return ""
        if before == self.root.writer.volume or before in ("", SPARK_VOLUME, LOCAL_VOLUME):
            return ""
        return (
            f"{self.root.topic}-{self.root.partition} resumes at offset {self.next_offset}: if volume {before}, "
            f"claimed by {self.previous.owner}, appended beyond it, only its disk has these records"
        )


def known_to(volume: VolumeProof, token: str, last_append: str) -> VolumeProof:
    """Return the proof with the ids that this process has persisted since ``volume`` was read."""
    return replace(volume, token=hold(volume.token, token), last_append=hold(volume.last_append, last_append))
