"""The states in which a crash at any call to the disk may leave it.

:class:`Disk` replays effects one by one and knows at each point what the page cache holds (``now``), what an fsync has
made safe (``safe``) and what lies between the two (``later``). Names follow a journal: of the changes to one directory
since its last fsync a beginning survives. Data follow nothing: any part of what was written since the file's last
fsync survives. :meth:`Disk.losses` lists every loss of a single directory by itself, with all else safe: the state that
shows an fsync of that directory which is missing before something else was done that relies on its names.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.crash.matrix.trace import Effect


@dataclass(slots=True)
class Change:
    """A write (``data``) or a truncate (``size``) of one file.

    ``doomed``: the fsync behind it failed, no later one makes it safe. ``safe``: it is, but an older one is doomed.
    """

    position: int
    data: bytes
    size: int
    doomed: bool = False
    safe: bool = False

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
        for change in self.later:
            if not change.safe and not change.doomed:
                change.doomed, change.safe = failed, not failed
        content = bytearray(self.safe)
        while self.later and self.later[0].safe:
            self.later.pop(0).apply(content)
        self.safe = bytes(content)


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


def after(folder: Folder, count: int) -> dict[str, Inode | Folder]:
    """The names when the first ``count`` changes since the last fsync survive."""
    names = dict(folder.safe)
    for change in folder.later[:count]:
        renamed(names, change)
    return names


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
        folder = self._folder(effect.path.parent)
        if effect.target.parent != effect.path.parent:  # one entry in the journal, which takes both directories along
            target = self._folder(effect.target.parent)
            target.change({effect.target.name: folder.now[effect.path.name]})
            folder.change({effect.path.name: None})
            target.sync()
            folder.sync()
            return
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

    def losses(self) -> list[Loss]:
        """Each end of each directory's changes that a power cut may take, the directories by path."""
        found: list[Loss] = []
        seen: set[int] = set()
        waiting = [self.top]
        while waiting:
            folder = waiting.pop()
            if id(folder) in seen:
                continue
            seen.add(id(folder))
            found += [Loss(folder, kept) for kept in range(len(folder.later))]
            children = [names[name] for names in (folder.now, folder.safe) for name in sorted(names, reverse=True)]
            waiting += [child for child in children if isinstance(child, Folder)]
        return found

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


class Loss(NamedTuple):
    """Of the changes to this directory only the first ``kept`` survive."""

    folder: Folder
    kept: int


POWER_CUTS = ("lost", "names", "data", "zeros", "torn", "any")


class Cut:
    """Which of the changes that were not fsynced survive a power cut.

    ``lost`` none; ``names`` the names only; ``data`` the data only; ``zeros`` names and lengths; ``torn`` a beginning
    of each, a write cut in the middle; ``any`` a beginning of the names, any of the writes; ``suffix`` all, but for the
    ``loss`` of one directory.
    """

    def __init__(self, kind: str, dice: random.Random, loss: Loss | None = None) -> None:
        self.kind = kind
        self._dice = dice
        self._loss = loss

    def names(self, folder: Folder) -> dict[str, Inode | Folder]:
        """The names in a directory."""
        if self._loss is not None:
            kept = self._loss.kept if folder is self._loss.folder else len(folder.later)
            return after(folder, kept)
        count = {"lost": 0, "data": 0, "names": len(folder.later), "zeros": len(folder.later)}.get(self.kind)
        if count is None:
            count = self._dice.randint(0, len(folder.later))
        return after(folder, count)

    def content(self, inode: Inode) -> bytes:
        """The bytes of a file."""
        if self.kind in ("data", "suffix"):
            return bytes(inode.now)
        content = bytearray(inode.safe)
        unsafe = [change for change in inode.later if not change.safe]
        reached = unsafe[self._dice.randrange(len(unsafe))] if unsafe and self.kind == "torn" else None
        gone = False
        for change in inode.later:
            if change.safe:
                change.apply(content)
            elif self.kind == "zeros":
                change.apply(content, zeros=True)
            elif change is reached:
                change.apply(content, stop=self._dice.randint(0, len(change.data)))
                gone = True
            elif (reached is not None and not gone) or (self.kind == "any" and self._dice.random() < 0.5):
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
