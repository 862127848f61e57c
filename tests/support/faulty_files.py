"""A disk that fails on purpose: the n-th effect fails, or a power cut loses data that was not fsynced."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from tiered.local.disk.files import DiskSpace, FileState, PosixFiles, translate


class PowerCut(BaseException):
    """Simulated loss of power. Nothing between the faulty disk and the test may handle it."""


class FaultyFiles(PosixFiles):
    """The real disk, but a test decides which effect fails, and how. An fsync is only remembered, never made.

    ``fail(operation, path)`` is asked before each effect (``write``, ``sync``, ``truncate``, ``rename``, ``unlink``,
    ``open``, ``sync_directory``). It may return an errno, which then is the outcome, or raise :class:`PowerCut`. A
    failing write first writes ``torn`` of its bytes (a fraction). ``free_bytes`` overrides the result of ``space``.
    """

    def __init__(self, fail: Callable[[str, Path], int] | None = None, *, torn: float = 0.5) -> None:
        self.fail = fail
        self.torn = torn
        self.free_bytes: int | None = None
        self.effects: list[tuple[str, Path]] = []
        self._paths: dict[int, Path] = {}
        self._durable: dict[Path, bytes] = {}
        self._dirty: set[Path] = set()

    def open_write(self, path: Path) -> int:
        self._effect("open", path)
        created = not path.exists()
        handle = super().open_write(path)
        self._paths[handle] = path
        if created:
            self._dirty.add(path)
        return handle

    def open_read(self, path: Path) -> int:
        handle = super().open_read(path)
        self._paths[handle] = path
        return handle

    def write_at(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> None:
        path = self._paths[handle]
        self._dirty.add(path)
        try:
            self._effect("write", path)
        except BaseException:
            super().write_at(handle, memoryview(data)[: int(len(data) * self.torn)], position)
            raise
        super().write_at(handle, data, position)

    def truncate(self, handle: int, size: int) -> None:
        path = self._paths[handle]
        self._effect("truncate", path)
        self._dirty.add(path)
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        path = self._paths[handle]
        self._effect("sync", path)
        self._durable[path] = path.read_bytes()
        self._dirty.discard(path)

    def sync_directory(self, path: Path) -> None:
        self._effect("sync_directory", path)

    def rename(self, source: Path, target: Path) -> None:
        self._effect("rename", source)
        directory = self.is_directory(source)
        super().rename(source, target)
        if not directory:
            self._renamed(source, target)
            return
        for path in [path for path in {*self._durable, *self._dirty} if path.parent == source]:
            self._renamed(path, target / path.name)

    def _renamed(self, source: Path, target: Path) -> None:
        if source in self._durable:
            self._durable[target] = self._durable.pop(source)
        if source in self._dirty:
            self._dirty.discard(source)
            self._dirty.add(target)
        else:
            self._dirty.discard(target)

    def unlink(self, *paths: Path) -> None:
        for path in paths:
            self._effect("unlink", path)
            super().unlink(path)
            self._durable.pop(path, None)
            self._dirty.discard(path)

    def set_modified(self, path: Path, modified_ms: int) -> None:
        self._effect("touch", path)
        super().set_modified(path, modified_ms)

    def space(self, path: Path) -> DiskSpace | None:
        space = super().space(path)
        if space is None or self.free_bytes is None:
            return space
        return DiskSpace(self.free_bytes, space.total)

    def cut_power(self, dice: random.Random) -> None:
        """Cut each file that was not fsynced since its last change, and lose some of its later bytes.

        The durable part stays. Later bytes may be whole, cut anywhere, or zeros of the right length, as file systems
        do.
        """
        for path in sorted(self._dirty):
            if not path.exists():
                continue
            now, safe = path.read_bytes(), self._durable.get(path, b"")
            if not now.startswith(safe):  # rewritten in place (an index): either version
                path.write_bytes(dice.choice((now, safe)))
                continue
            cut = dice.randint(len(safe), len(now))
            zeros = dice.choice((0, len(now) - cut))
            path.write_bytes(now[:cut] + bytes(zeros))
        for path in self._dirty:
            if path.exists():
                self._durable[path] = path.read_bytes()
        self._dirty.clear()
        self.fail = None

    def _effect(self, operation: str, path: Path) -> None:
        self.effects.append((operation, path))
        number = self.fail(operation, path) if self.fail is not None else 0
        if number:
            raise translate(OSError(number, errno.errorcode.get(number, "")), operation, path)


class UnreadableFiles(PosixFiles):
    """The real disk, where some paths and everything below them cannot be read by any user, root included.

    ``errno.EACCES`` refuses names, states and opens, as a directory without the right to search it does. Any other
    number, such as ``errno.EIO``, fails the read only: a file with a bad sector is still listed and opened.
    """

    def __init__(self, *paths: Path, number: int = errno.EACCES) -> None:
        self.paths = frozenset(paths)
        self.number = number
        self._handles: dict[int, Path] = {}

    def open_read(self, path: Path) -> int:
        self._refuse("open", path, only=errno.EACCES)
        handle = super().open_read(path)
        self._handles[handle] = path
        return handle

    def close(self, handle: int) -> None:
        self._handles.pop(handle, None)
        super().close(handle)

    def read_into(self, handle: int, buffer: bytearray | memoryview, position: int) -> int:
        if handle in self._handles:
            self._refuse("read", self._handles[handle])
        return super().read_into(handle, buffer, position)

    def read(self, path: Path) -> bytes:
        if path.exists():
            self._refuse("read", path)
        return super().read(path)

    def names(self, path: Path) -> list[str]:
        self._refuse("list", path)
        return super().names(path)

    def state(self, path: Path) -> FileState | None:
        if path not in self.paths:  # its own state comes from its parent directory
            self._refuse("stat", path, only=errno.EACCES)
        return super().state(path)

    def _refuse(self, operation: str, path: Path, *, only: int = 0) -> None:
        if only not in (0, self.number) or self.paths.isdisjoint((path, *path.parents)):
            return
        raise translate(OSError(self.number, os.strerror(self.number)), operation, path)


def on_nth(n: int, operation: str, outcome: int | type[BaseException]) -> Callable[[str, Path], int]:
    """Fail the ``n``-th (from 1) effect named ``operation`` (``"*"``: any). After a power cut every later one fails."""
    count = 0

    def fail(name: str, _: Path) -> int:
        nonlocal count
        count += operation in ("*", name)
        hit = count == n or (count > n and not isinstance(outcome, int))
        if not hit:
            return 0
        if isinstance(outcome, int):
            return outcome
        raise outcome

    return fail
