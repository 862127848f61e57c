"""The real disk with a note of every call, any of which may be made to fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tiered.local.disk.files import DiskSpace, FileState, PosixFiles, translate

READS = frozenset({"open_read", "read", "read_into", "names", "state", "size", "space"})
"""Calls that change nothing."""


class Effect(NamedTuple):
    """One call. ``handle`` counts the opens; ``data`` is what was written of it; ``size`` that of a truncate."""

    name: str
    path: Path
    handle: int = -1
    target: Path | None = None
    position: int = 0
    data: bytes = b""
    size: int = 0
    failed: int = 0


Fail = Callable[[int, Effect], int]
"""Gets the number of a call and the call; returns the errno that becomes its outcome, or 0."""


class Stopped(BaseException):
    """The process ends here, while a log is prepared."""


class TraceFiles(PosixFiles):
    """The real disk under ``root``, every call noted. No fsync is made. A write that fails writes ``torn`` of it.

    ``stop`` raises :class:`Stopped` before the first call for which it says so.
    """

    def __init__(self, root: Path, fail: Fail | None = None, *, torn: float = 0.5) -> None:
        self.root = root
        self.fail = fail
        self.torn = torn
        self.stop: Callable[[Effect], bool] | None = None
        self.effects: list[Effect] = []
        self.hits: list[Effect] = []
        self._open: dict[int, tuple[int, Path]] = {}
        self._opened = 0

    def _effect(self, effect: Effect) -> None:
        if self.stop is not None and self.stop(effect):
            self.stop = None
            raise Stopped
        number = self.fail(len(self.effects), effect) if self.fail is not None else 0
        if not number:
            self.effects.append(effect)
            return
        kept = effect.data[: int(len(effect.data) * self.torn)]
        self.effects.append(effect._replace(data=kept, failed=number))
        self.hits.append(effect)
        raise translate(OSError(number, os.strerror(number)), effect.name, effect.path)

    def _bind(self, descriptor: int, path: Path) -> int:
        self._open[descriptor] = (self._opened, path)
        self._opened += 1
        return descriptor

    def open_write(self, path: Path) -> int:
        self._effect(Effect("open", path, self._opened))
        return self._bind(super().open_write(path), path)

    def open_read(self, path: Path) -> int:
        self._effect(Effect("open_read", path, self._opened))
        return self._bind(super().open_read(path), path)

    def close(self, handle: int) -> None:
        self._open.pop(handle, None)
        super().close(handle)

    def write_at(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> None:
        serial, path = self._open[handle]
        try:
            self._effect(Effect("write", path, serial, position=position, data=bytes(data)))
        except BaseException:
            super().write_at(handle, self.effects[-1].data, position)
            raise
        super().write_at(handle, data, position)

    def read_into(self, handle: int, buffer: bytearray | memoryview, position: int) -> int:
        serial, path = self._open[handle]
        self._effect(Effect("read_into", path, serial, position=position))
        return super().read_into(handle, buffer, position)

    def size(self, handle: int) -> int:
        serial, path = self._open[handle]
        self._effect(Effect("size", path, serial))
        return super().size(handle)

    def truncate(self, handle: int, size: int) -> None:
        serial, path = self._open[handle]
        self._effect(Effect("truncate", path, serial, size=size))
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        serial, path = self._open[handle]
        self._effect(Effect("sync", path, serial))

    def sync_directory(self, path: Path) -> None:
        self._effect(Effect("sync_directory", path))

    def rename(self, source: Path, target: Path) -> None:
        self._effect(Effect("rename", source, target=target))
        super().rename(source, target)

    def unlink(self, *paths: Path) -> None:
        for path in paths:
            self._effect(Effect("unlink", path))
            super().unlink(path)

    def make_directory(self, path: Path) -> None:
        self._effect(Effect("mkdir", path))
        super().make_directory(path)

    def remove_directory(self, path: Path) -> None:
        self._effect(Effect("rmdir", path))
        super().remove_directory(path)

    def names(self, path: Path) -> list[str]:
        self._effect(Effect("names", path))
        return super().names(path)

    def state(self, path: Path) -> FileState | None:
        self._effect(Effect("state", path))
        return super().state(path)

    def read(self, path: Path) -> bytes:
        self._effect(Effect("read", path))
        return super().read(path)

    def space(self, path: Path) -> DiskSpace:
        self._effect(Effect("space", path))
        return DiskSpace(2**40, 2**41)

    def abandon(self) -> None:
        """What the end of the process does: every file is closed, so locks are gone, and nothing else happens."""
        for handle in list(self._open):
            self.close(handle)


def fails_at(number: int, code: int) -> Fail:
    """The call ``number`` (from 0) fails once."""
    return lambda index, _: code if index == number else 0


ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
