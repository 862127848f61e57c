"""What a claim is to its holder: the proof kept on the volume, and the words for who owns a partition.

A claim carries a random token and every append commit an id. Both are handed to ``persist`` and must be durable on the
volume *before* the root that carries them is sent: written afterwards, a crash in between locks the rightful owner
out. ``persist`` gets opaque text that replaces what it kept before (None: keep it). The text holds the last id that is
known to be in the root and those that may be under way, so that whichever of them landed, the volume can show it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from tiered.format.root import RoleState, Root
from tiered.plan.lifecycle import LOCAL_VOLUME, SPARK_VOLUME, VolumeProof, hold

Persist = Callable[[str | None, str | None], None]
"""``persist(token, last_append)``: both are kept, fsynced, when it returns; None leaves one as it is; may raise."""


def forget(token: str | None, last_append: str | None) -> None:
    """A ``persist`` for those who hold no records: maintainers."""


def owner_of(program: str) -> str:
    """How a claim of this process names its holder: ``host:pid`` and the program."""
    return f"{socket.gethostname()}:{os.getpid()} {program}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A granted claim. ``leader_epoch`` is the one under which this volume writes from ``next_offset`` on.

    ``resumes``: the local log must begin at ``next_offset``, under ``leader_epoch`` (a fresh volume).
    ``previous`` is the role before this claim.
    ``dated_ahead``: one sentence if the catalog was dated ahead of the store's clock before, ``""`` if not.
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
        """What a fresh volume cannot know: one sentence for the log, ``""`` if nothing can be missing.

        Nothing is if the claim before was this volume's own, a sink's, whose records are all objects, or a handover.
        """
        before = self.previous.volume
        if not self.resumes or not self.previous.epoch:
            return ""
        if before == self.root.writer.volume or before in (SPARK_VOLUME, LOCAL_VOLUME):
            return ""
        return (
            f"{self.root.topic}-{self.root.partition} resumes at offset {self.next_offset}: records that "
            f"{self.previous.owner} acknowledged beyond it and never uploaded are only on volume {self.previous.volume}"
        )


def known_to(volume: VolumeProof, token: str, last_append: str) -> VolumeProof:
    """The proof with what this process itself has persisted since ``volume`` was read."""
    return replace(volume, token=hold(volume.token, token), last_append=hold(volume.last_append, last_append))
