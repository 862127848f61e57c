"""What is under a snapshot's name: a root that somebody begins to keep, one that is kept, or the note of a deletion.

All bear a random id. So no two bodies under one name are equal, its ETags never repeat, and a conditional PUT that
arrives late never finds again what it was sent for. Without the fields ``begun`` and ``kept`` a snapshot is the root's
own bytes, as releases before wrote it; they take one that is begun for one that is kept.
"""

from __future__ import annotations

from tiered.errors import CorruptionError
from tiered.format.container import has_first_field, with_field
from tiered.format.root import Root, decode_root

DROPPED = b"deleted "
DROPPED_BYTES = len(DROPPED) + 32
"""Size of the note of a deletion. A root is larger: a listing tells the two apart."""


def encode_kept(root: bytes, uid: str) -> bytes:
    """The body of a snapshot of a root's bytes; ``uid``: 32 hex digits, new for each PUT."""
    return with_field(root, "kept", uid)


def encode_begun(root: bytes, uid: str) -> bytes:
    """The body of a snapshot of which nobody was told yet; arguments as of :func:`encode_kept`."""
    return with_field(root, "begun", uid)


def is_begun(data: bytes) -> bool:
    """Whether a body is one of :func:`encode_begun`."""
    return has_first_field(data, "begun")


def encode_dropped(uid: str) -> bytes:
    """The body of the note that a snapshot was deleted; ``uid`` as of :func:`encode_kept`."""
    return DROPPED + uid.encode()


def decode_kept(data: bytes, *, key: str) -> Root | None:
    """The root that is kept under ``key``, None for the note of a deletion. Raises as ``decode_root``."""
    if len(data) != DROPPED_BYTES:
        return decode_root(data, key=key)
    if not data.startswith(DROPPED):
        raise CorruptionError(f"{key} is neither a root nor the note of a deletion", path_or_key=key, position=0)
    return None
