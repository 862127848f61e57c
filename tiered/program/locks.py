"""Who writes and who uploads a log directory, by the notes beside the locks; no lock is touched to find out."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from tiered.local.disk.files import PosixFiles
from tiered.local.disk.lock import LOCK_NAME, UPLOADER_LOCK_NAME, DirectoryLock, Holder


def lock_holders(directory: Path) -> dict[str, Holder]:
    """Holders of the writer's and the uploader's lock; the note of a process that is gone does not count."""
    found = {}
    for role, name in (("writer", LOCK_NAME), ("uploader", UPLOADER_LOCK_NAME)):
        holder = DirectoryLock(directory, PosixFiles(), name=name).holder()
        if holder.pid and _lives(holder):
            found[role] = holder
    return found


def _lives(holder: Holder) -> bool:
    if holder.host != socket.gethostname():
        return True
    try:
        os.kill(holder.pid, 0)
    except OSError as cause:
        return cause.errno != errno.ESRCH
    return True
