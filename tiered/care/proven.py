"""What a check has to read, and the file in which it notes what it has seen: ``check --resume FILE``.

::

    tieredlog check 1 s3://acme-logs/prod
    r data 7/20 00000000 1795368000000 9abcdef0   a round: what it looks at, and when it began
    v flights-0 0a1b...f 17 3c4d5e6f  the version of a catalog that was looked at, after its topic id
    s 0011223344556677 1a2b3c4d       a segment in which this round found nothing wrong
    d 8899aabbccddeeff 5e6f7081       every byte of it was read, too, in this round or an earlier one

An object is written once, so that bytes that were right need no second look: a later round asks for size and checksum
only. A round that was cut short goes on where it was, if it looks at the same and began less than :data:`ROUND_MS` ago:
what it had seen is passed over, but for segments with errors or warnings, which are never noted. The end of a round
keeps the ``d`` lines of what is still in the bucket. Lines are a checksum long: one that is torn, or of another bucket,
is no line.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np

from tiered.config import DAY_MS
from tiered.errors import ConfigError, LockedError
from tiered.format.crc import crc32c
from tiered.format.keys import FLAG_STAGED, join_uid
from tiered.local.disk.files import Files
from tiered.model import Row, TopicPartition

HEAD = "tieredlog check 1 "
PIECE_BYTES = 1024 * 1024
"""Bytes of the file that are read or written at once."""

ROUND_MS = DAY_MS
"""Age at which a round that was cut short is begun anew: what it has seen may be gone since."""

_ROUND, _SEEN, _READ, _VERSION = "r", "s", "d", "v"


class Proven:
    """One state file. :meth:`open` it, :meth:`note` what was seen, :meth:`end` the round; :meth:`close` in any case.

    Memory: 16 bytes for each segment. Raises ConfigError for a file that is another's, LockedError beside another run.
    """

    def __init__(self, path: Path, url: str, files: Files) -> None:
        self._path = path
        self._url = url
        self._files = files
        self._handle = -1
        self._size = 0
        self._seen = self._read = np.empty(0, np.uint64)
        self._now, self._now_read = array("Q"), array("Q")
        self._versions: dict[str, int] = {}

    def open(self, scope: str, now_ms: int) -> None:
        """Reads what earlier runs noted; makes the file if there is none.

        ``scope``: what this run looks at. A round of another one, or that began :data:`ROUND_MS` ago, is begun anew.
        """
        handle = self._files.try_lock(self._path)
        if handle is None:
            raise LockedError(f"{self._path} is in use by another check", hint="name another file, or wait for it")
        self._handle = handle
        head = f"{HEAD}{self._url}\n".encode()
        size = self._files.size(handle)
        if not size:
            self._append(head)
            self._begin(scope, now_ms)
            return
        found = bytearray(min(len(head), size))
        self._files.read_into(handle, found, 0)
        if found != head:
            raise ConfigError(
                f"{self._path} is not the state of a check of {self._url}", hint="name another file; a new one is made"
            )
        self._size = size
        noted_scope, began_ms = self._load(len(head), size)
        if noted_scope != scope or not 0 <= now_ms - began_ms < ROUND_MS:
            self._seen = np.empty(0, np.uint64)
            self._begin(scope, now_ms)

    def _begin(self, scope: str, now_ms: int) -> None:
        self._append(self._line(_ROUND, f"{scope} {now_ms}") + b"\n")

    def _load(self, at: int, size: int) -> tuple[str, int]:
        """What the last round looked at, and when it began; what was seen before it counts for nothing."""
        noted = {_SEEN: array("Q"), _READ: array("Q")}
        rest, scope, began_ms = b"", "", 0
        while at < size:
            piece = bytearray(min(PIECE_BYTES, size - at))
            self._files.read_into(self._handle, piece, at)
            at += len(piece)
            *lines, rest = (rest + bytes(piece)).split(b"\n")
            for line in lines:
                kind, _, number = line[:18].decode("ascii", "replace").partition(" ")
                if kind in noted and line == self._line(kind, number):
                    noted[kind].append(int(number, 16))
                elif kind == _ROUND and line == self._line(_ROUND, told := line[2:-9].decode("ascii", "replace")):
                    scope, _, began = told.rpartition(" ")
                    began_ms = int(began)
                    noted[_SEEN] = array("Q")
                elif kind == _VERSION and line == self._line(_VERSION, told := line[2:-9].decode("ascii", "replace")):
                    name, _, version = told.rpartition(" ")
                    self._versions[name] = max(int(version), self._versions.get(name, 0))
        self._read = np.unique(np.array(noted[_READ], np.uint64))
        self._seen = np.unique(np.array(noted[_SEEN], np.uint64))
        if rest:
            self._append(b"\n")  # a torn line ends here, and is none
        return scope, began_ms

    def was_seen(self, row: Row) -> bool:
        """Whether this round has looked at the segment before it was cut short, and found nothing wrong."""
        return _holds(self._seen, row)

    def was_read(self, row: Row) -> bool:
        """Whether all its bytes were read and right, in whatever round."""
        return _holds(self._read, row)

    def look_at(self, tp: TopicPartition, topic_id: UUID, version: int) -> int:
        """A partition is looked at in this version; gives the newest that was looked at before, 0 without one."""
        name = f"{tp} {topic_id.hex}"
        before = self._versions.get(name, 0)
        self._versions[name] = max(version, before)
        self._append(self._line(_VERSION, f"{name} {version}") + b"\n")
        return before

    def note(self, rows: Iterable[tuple[Row, bool]]) -> None:
        """Segments without an error or a warning; the second of each: whether all bytes were read."""
        lines: list[bytes] = []
        for row, was_read in rows:
            self._now.append(_number(row))
            if was_read:
                self._now_read.append(_number(row))
                lines.append(self._line(_READ, f"{_number(row):016x}"))
            lines.append(self._line(_SEEN, f"{_number(row):016x}"))
        if lines:
            self._append(b"\n".join([*lines, b""]))

    def pass_over(self, row: Row) -> None:
        """The segment is still in the bucket."""
        self._now.append(_number(row))

    def end(self, *, everything: bool) -> None:
        """The round is complete: the next one looks at all again. ``everything``: what was not seen is gone."""
        read = np.union1d(self._read, np.array(self._now_read, np.uint64))
        if everything:
            read = np.intersect1d(read, np.array(self._now, np.uint64))
        seen = [self._line(_VERSION, f"{name} {version}") for name, version in self._versions.items()]
        head = b"\n".join([f"{HEAD}{self._url}".encode(), *seen, b""])
        temporary = self._path.with_name(f"{self._path.name}.new")
        handle = self._files.open_write(temporary)
        try:
            self._files.truncate(handle, 0)
            position = 0
            for piece in (head, *self._pieces(read)):
                self._files.write_at(handle, piece, position)
                position += len(piece)
            self._files.sync(handle)
        finally:
            self._files.close(handle)
        self._files.rename(temporary, self._path)
        self._files.sync_directory(self._path.absolute().parent)

    def _pieces(self, numbers: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Iterable[bytes]:
        for at in range(0, len(numbers), PIECE_BYTES // 32):
            some = numbers[at : at + PIECE_BYTES // 32]
            yield b"".join(self._line(_READ, f"{int(number):016x}") + b"\n" for number in some)

    def close(self) -> None:
        """Lets go of the file."""
        if self._handle >= 0:
            self._files.close(self._handle)
            self._handle = -1

    def _line(self, kind: str, number: str) -> bytes:
        text = f"{kind} {number} "
        return f"{text}{crc32c(f'{text}{self._url}'.encode()):08x}".encode()

    def _append(self, data: bytes) -> None:
        self._files.write_at(self._handle, data, self._size)
        self._size += len(data)


def _number(row: Row) -> int:
    """64 bits of the object's name that no other has; of what a sink staged each half has some of its randomness."""
    uid = join_uid(row.id_hi, row.id_lo)
    number = int(uid[16:], 16)
    return number ^ int(uid[:16], 16) if row.flags & FLAG_STAGED else number


def _holds(numbers: np.ndarray[tuple[int], np.dtype[np.uint64]], row: Row) -> bool:
    number = np.uint64(_number(row))
    at = int(np.searchsorted(numbers, number))
    return at < len(numbers) and bool(numbers[at] == number)


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of each segment beside its size, its checksum and its indexes.

    ``subset`` (n, m): the n-th of m parts of all segments, counted from 1, by their names: each is in exactly one.
    ``pin``: data is read under a pin, where one may be made.
    """

    data: bool = False
    subset: tuple[int, int] | None = None
    proven: Proven | None = None
    pin: bool = True

    def scope(self, log_dir: Path | None) -> str:
        """All that tells which of two checks sees more of a segment, in a line: the disk it is compared with, too."""
        what = "data" if self.data else "plain"
        part = "all" if self.subset is None else f"{self.subset[0]}/{self.subset[1]}"
        return f"{what} {part} {crc32c(str(log_dir.absolute()).encode()) if log_dir is not None else 0:08x}"

    def passes_over(self, row: Row) -> bool:
        """Nothing is asked of it: this round, which looks at the same, has seen it."""
        return self.proven is not None and self.proven.was_seen(row)

    def chooses(self, row: Row) -> bool:
        """Whether its bytes are to be known."""
        return self.data and (self.subset is None or _number(row) % self.subset[1] == self.subset[0] - 1)

    def wants(self, row: Row) -> bool:
        """Whether its bytes are to be read: they are not known yet."""
        return self.chooses(row) and not (self.proven is not None and self.proven.was_read(row))
