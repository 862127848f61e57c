"""Notes of where the links beside a broker begin. A removed link would leave no trace between two others.

``tiered-links`` in a partition of the private directory, as Kafka writes its checkpoints::

    0            version
    3            lines that follow
    0            a link begins at this offset
    4711         the next one; the one before it ends here
    9000         where the links end

An offset is noted before its link is made, and struck out before the link is deleted. A kill in between leaves an
offset at or above the end of the links, or a link that is not noted. Neither counts as missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tiered.errors import CorruptionError, NewerFormatError
from tiered.local.disk.files import Files, SmallFile

LINKS_NAME = "tiered-links"
VERSION = 0


class Lost(NamedTuple):
    """A noted link that is missing: offsets ``base`` to before ``after``."""

    base: int
    after: int


class LinkNotes:
    """The notes of one private directory. One thread writes at a time."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._notes: dict[Path, SmallFile[tuple[int, ...]]] = {}

    def read(self, folder: Path) -> tuple[int, ...]:
        """Return the noted offsets, ascending; none without a note. Raises CorruptionError.

        Costs one ``stat`` while nothing changed.
        """
        return self._note(folder).load() or ()

    def write(self, folder: Path, offsets: Sequence[int]) -> None:
        """Replace the note, durably, unless it has these offsets already."""
        if list(self.read(folder)) != list(offsets):
            self._note(folder).store(encode(offsets), tuple(offsets))

    def _note(self, folder: Path) -> SmallFile[tuple[int, ...]]:
        note = self._notes.get(folder)
        if note is None:
            path = folder / LINKS_NAME
            note = self._notes[folder] = SmallFile(path, self._files, partial(_decode_of, path))
        return note

    def offsets(self, folder: Path, linked: Sequence[int]) -> list[int]:
        """Return where links begin, existing (``linked``) or missing, and the end of the last."""
        return sorted({*linked, *(offset for offset in self.read(folder) if linked and offset < linked[-1])})

    def there(self, folder: Path, linked: Sequence[int]) -> list[tuple[int, int]]:
        """Return the existing links with their ends. A link ends where the next one begins, even if that is missing."""
        there = frozenset(linked)
        return [pair for pair in itertools.pairwise(self.offsets(folder, linked)) if pair[0] in there]

    def lost(self, folder: Path, linked: Sequence[int], committed: int) -> list[Lost]:
        """Return missing links with offsets beyond ``committed``, the end of the bucket."""
        there = frozenset(linked)
        pairs = itertools.pairwise(self.offsets(folder, linked))
        return [Lost(base, after) for base, after in pairs if base not in there and after > committed]


def encode(offsets: Sequence[int]) -> bytes:
    return "".join(f"{number}\n" for number in (VERSION, len(offsets), *offsets)).encode()


def _decode_of(path: Path, data: bytes) -> tuple[int, ...]:
    """Decode the note at ``path``. An error names the file and the next step."""
    try:
        return decode(data)
    except NewerFormatError as newer:
        newer.message = f"{path} was written by a newer release: {newer.message}"
        newer.hint = "upgrade tieredlog; nothing of the partition is uploaded meanwhile"
        raise
    except CorruptionError as error:
        raise CorruptionError(
            f"{path} cannot be read: {error.message}",
            path_or_key=str(path),
            hint="it tells which links there were, and nothing is uploaded without it. If no file of "
            f"{path.parent} was removed by hand, stop this and remove it: it is made anew from the links",
        ) from error


def decode(data: bytes) -> tuple[int, ...]:
    """Return the offsets. Raises CorruptionError."""
    lines = data.decode("ascii", "replace").splitlines()
    if not all(line.isdecimal() for line in lines) or len(lines) < 2:
        raise CorruptionError("it is not a list of offsets", position=0)
    version, count, *offsets = map(int, lines)
    if version != VERSION:
        raise NewerFormatError(f"it has version {version}, not {VERSION}", position=0)
    if count != len(offsets) or offsets != sorted(set(offsets)):
        raise CorruptionError(f"it announces {count} ascending offsets and has {len(offsets)} lines", position=0)
    return tuple(offsets)
