"""What a process says of itself in a file of its own, outside of the log: it outlives the process, and its kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Note = dict[str, Any]


class Notes:
    """One line of JSON for each thing that happened; written when it has happened, never before."""

    def __init__(self, path: Path) -> None:
        _end_line(path)
        self._file = path.open("a", buffering=1)

    def close(self) -> None:
        """No more of them."""
        self._file.close()

    def add(self, what: str, **fields: Any) -> None:
        """In the page cache of this machine when it returns: a kill leaves it there."""
        self._file.write(json.dumps({"what": what, **fields}) + "\n")


def _end_line(path: Path) -> None:
    """A kill may have torn the last line: nobody was told what it was to say."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])


def read_notes(path: Path) -> Iterator[Note]:
    """The whole lines of a file of notes; none if there is no such file yet."""
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
