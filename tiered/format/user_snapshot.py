"""Objects under a snapshot's name: a root that is being kept, a root that is kept, or the note of a deletion.

Each contains a random id. No two bodies under one name are equal, so ETags never repeat, and a late conditional PUT
never matches again. A root begins with the fields ``begun`` or ``kept``, and ``snapshot`` (its name). A body under
another name than its own is damage, for example after two objects were swapped.
"""

from __future__ import annotations

import re

from tiered.errors import CorruptionError
from tiered.format.framed_object import HEAD_BYTES, has_first_field, with_field
from tiered.format.keys import parse_snap_key
from tiered.format.root import Root, decode_root

DROPPED = b"deleted "
DROPPED_BYTES = len(DROPPED) + 32
"""Size of the note of a deletion. A root is larger: a listing distinguishes the two by size."""


_FRONT = re.compile(rb'\{"(?:kept|begun)":"[0-9a-f]{32}","snapshot":"([a-zA-Z0-9._-]{1,100})",')


def encode_complete_snapshot(root: bytes, uid: str, name: str) -> bytes:
    """Return the body of the snapshot ``name`` of a root's bytes; ``uid``: 32 hex digits, new for each PUT."""
    return with_field(with_field(root, "snapshot", name), "kept", uid)


def encode_pending_snapshot(root: bytes, uid: str, name: str) -> bytes:
    """Return the body of an unfinished snapshot. Arguments as for :func:`encode_complete_snapshot`."""
    return with_field(with_field(root, "snapshot", name), "begun", uid)


def is_begun(data: bytes) -> bool:
    """Return True if a body is one of :func:`encode_pending_snapshot`."""
    return has_first_field(data, "begun")


def encode_dropped(uid: str) -> bytes:
    """Return the body of the note that a snapshot was deleted; ``uid`` as of :func:`encode_complete_snapshot`."""
    return DROPPED + uid.encode()


def decode_kept(data: bytes, *, key: str) -> Root | None:
    """Return the root that is kept under ``key``, None for the note of a deletion. Raises like ``decode_root``, and
    CorruptionError for the snapshot of another name.
    """
    if len(data) != DROPPED_BYTES:
        root, name = decode_root(data, key=key), parse_snap_key(key)
        front = None if name is None else _FRONT.match(data, HEAD_BYTES)
        if name is not None and (front is None or front[1] != name.encode()):
            why = "no snapshot: a root was copied there" if front is None else f"the snapshot {front[1].decode()}"
            raise CorruptionError(
                f"{key} is {why}"
                + ("" if front is None else ": two snapshots were swapped, or one was copied by hand"),
                path_or_key=key,
                position=HEAD_BYTES,
            )
        return root
    if not data.startswith(DROPPED):
        raise CorruptionError(f"{key} is neither a root nor the note of a deletion", path_or_key=key, position=0)
    return None
