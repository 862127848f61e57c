"""A disk that remembers every call, and the states in which a crash at any of them may leave it.

:class:`TraceFiles` is the real disk; each call becomes an :class:`Effect`. :class:`Disk` replays effects one by one and
knows at each point what the page cache holds (``now``), what an fsync has made safe (``safe``) and what lies between
the two (``later``). Names follow a journal: of the changes to one directory since its last fsync a beginning survives.
Data follow nothing: any part of what was written since the file's last fsync survives.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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

    def unlink(self, path: Path) -> None:
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


@dataclass(slots=True)
class Change:
    """A write (``data``) or a truncate (``size``) of one file. ``doomed``: the fsync behind it failed."""

    position: int
    data: bytes
    size: int
    doomed: bool = False

    def apply(self, content: bytearray, *, start: int = 0, stop: int | None = None, zeros: bool = False) -> None:
        """Bytes ``start`` to ``stop`` of the write (all), or the truncate."""
        if self.size >= 0:
            del content[self.size :]
            content.extend(bytes(self.size - len(content)))
            return
        data = self.data[start:stop]
        position = self.position + start
        if data and len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = bytes(len(data)) if zeros else data


@dataclass(slots=True, eq=False)
class Inode:
    """One file, whatever its names."""

    now: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    later: list[Change] = field(default_factory=list)

    def sync(self, *, failed: bool) -> None:
        if failed:
            for change in self.later:
                change.doomed = True
            return
        content = bytearray(self.safe)
        for change in self.later:
            if not change.doomed:
                change.apply(content)
        self.safe = bytes(content)
        self.later = [change for change in self.later if change.doomed]


@dataclass(slots=True, eq=False)
class Folder:
    """One directory. A change of names is what one call does to some of them (None: the name goes)."""

    now: dict[str, Inode | Folder] = field(default_factory=dict)
    safe: dict[str, Inode | Folder] = field(default_factory=dict)
    later: list[dict[str, Inode | Folder | None]] = field(default_factory=list)

    def change(self, change: dict[str, Inode | Folder | None]) -> None:
        self.later.append(change)
        renamed(self.now, change)

    def sync(self) -> None:
        for change in self.later:
            renamed(self.safe, change)
        self.later.clear()


def renamed(names: dict[str, Inode | Folder], change: dict[str, Inode | Folder | None]) -> None:
    """Applies one change of names."""
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """What effects have made of the directories under ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Folder()
        self._handles: dict[int, Inode] = {}

    @classmethod
    def load(cls, root: Path) -> Disk:
        """What is there now, all of it durable."""
        disk = cls(root)
        disk._load(disk.top, root)
        return disk

    def _load(self, folder: Folder, path: Path) -> None:
        for entry in sorted(path.iterdir()):
            node: Inode | Folder
            if entry.is_dir():
                node = Folder()
                self._load(node, entry)
            else:
                content = entry.read_bytes()
                node = Inode(bytearray(content), content)
            folder.now[entry.name] = folder.safe[entry.name] = node

    def apply(self, effect: Effect) -> None:
        """One more effect. A failed one did nothing, but that a write may have written and that an fsync dooms."""
        if effect.failed and effect.name not in ("write", "sync"):
            return
        getattr(self, f"_{effect.name}", self._nothing)(effect)

    def _nothing(self, effect: Effect) -> None:
        """A read."""

    def _folder(self, path: Path) -> Folder:
        node = self.top
        for name in path.relative_to(self.root).parts:
            child = node.now[name]
            assert isinstance(child, Folder)
            node = child
        return node

    def _open(self, effect: Effect) -> None:
        folder = self._folder(effect.path.parent)
        inode = folder.now.get(effect.path.name)
        if inode is None:
            inode = Inode()
            folder.change({effect.path.name: inode})
        assert isinstance(inode, Inode)
        self._handles[effect.handle] = inode

    def _open_read(self, effect: Effect) -> None:
        try:
            inode = self._folder(effect.path.parent).now.get(effect.path.name)
        except KeyError:
            return
        if isinstance(inode, Inode):
            self._handles[effect.handle] = inode

    def _write(self, effect: Effect) -> None:
        self._changed(effect, Change(effect.position, effect.data, -1))

    def _truncate(self, effect: Effect) -> None:
        self._changed(effect, Change(0, b"", effect.size))

    def _changed(self, effect: Effect, change: Change) -> None:
        inode = self._handles[effect.handle]
        inode.later.append(change)
        change.apply(inode.now)

    def _sync(self, effect: Effect) -> None:
        self._handles[effect.handle].sync(failed=bool(effect.failed))

    def _sync_directory(self, effect: Effect) -> None:
        self._folder(effect.path).sync()

    def _rename(self, effect: Effect) -> None:
        assert effect.target is not None
        assert effect.target.parent == effect.path.parent
        folder = self._folder(effect.path.parent)
        folder.change({effect.path.name: None, effect.target.name: folder.now[effect.path.name]})

    def _unlink(self, effect: Effect) -> None:
        folder = self._folder(effect.path.parent)
        if effect.path.name in folder.now:
            folder.change({effect.path.name: None})

    def _mkdir(self, effect: Effect) -> None:
        folder = self.top
        for name in effect.path.relative_to(self.root).parts:
            if name not in folder.now:
                folder.change({name: Folder()})
            child = folder.now[name]
            assert isinstance(child, Folder)
            folder = child

    def _rmdir(self, effect: Effect) -> None:
        self._folder(effect.path.parent).change({effect.path.name: None})

    def state(self, cut: Cut | None) -> Tree:
        """Files and directories as the next process finds them: after a kill (None), after a power cut."""
        tree: Tree = {}
        self._collect(self.top, Path(), cut, tree)
        return tree

    def _collect(self, folder: Folder, path: Path, cut: Cut | None, tree: Tree) -> None:
        names = folder.now if cut is None else cut.names(folder)
        for name in sorted(names):
            node = names[name]
            if isinstance(node, Folder):
                tree[path / name] = None
                self._collect(node, path / name, cut, tree)
            else:
                tree[path / name] = bytes(node.now) if cut is None else cut.content(node)


Tree = dict[Path, bytes | None]
"""Paths below a root, parents first; None for a directory."""

POWER_CUTS = ("lost", "names", "data", "zeros", "torn", "any")


class Cut:
    """Which of the changes that were not fsynced survive a power cut.

    ``lost`` none; ``names`` the names only; ``data`` the data only; ``zeros`` names and lengths; ``torn`` a beginning
    of each, a write cut in the middle; ``any`` a beginning of the names, any of the writes.
    """

    def __init__(self, kind: str, dice: random.Random) -> None:
        self.kind = kind
        self._dice = dice

    def names(self, folder: Folder) -> dict[str, Inode | Folder]:
        """The names in a directory."""
        count = {"lost": 0, "data": 0, "names": len(folder.later), "zeros": len(folder.later)}.get(self.kind)
        if count is None:
            count = self._dice.randint(0, len(folder.later))
        names = dict(folder.safe)
        for change in folder.later[:count]:
            renamed(names, change)
        return names

    def content(self, inode: Inode) -> bytes:
        """The bytes of a file."""
        content = bytearray(inode.safe)
        if self.kind in ("lost", "names") or not inode.later:
            return bytes(content)
        if self.kind == "data":
            return bytes(inode.now)
        if self.kind == "torn":
            *before, last = inode.later[: self._dice.randint(1, len(inode.later))]
            for change in before:
                change.apply(content)
            last.apply(content, stop=self._dice.randint(0, len(last.data)))
            return bytes(content)
        for change in inode.later:
            if self.kind == "zeros":
                change.apply(content, zeros=True)
            elif self._dice.random() < 0.5:
                change.apply(content)
        return bytes(content)


def write_tree(tree: Tree, root: Path) -> None:
    """Makes ``root`` hold the tree."""
    root.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def read_tree(root: Path) -> Tree:
    """What ``root`` holds."""
    tree: Tree = {}
    for path in walk(root):
        tree[path.relative_to(root)] = None if path.is_dir() else path.read_bytes()
    return tree


def walk(path: Path) -> Iterator[Path]:
    """Everything below ``path``, parents first, sorted."""
    for entry in sorted(path.iterdir()):
        yield entry
        if entry.is_dir():
            yield from walk(entry)


def fingerprint(tree: Tree) -> bytes:
    """Equal for equal trees."""
    digest = hashlib.blake2b(digest_size=16)
    for path, content in tree.items():
        digest.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        digest.update(content or b"")
    return digest.digest()


def fails_at(number: int, code: int) -> Fail:
    """The call ``number`` (from 0) fails once."""
    return lambda index, _: code if index == number else 0


ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
