"""A machine: one disk, the processes on it, kill -9, power cuts, disks put back from an older copy."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.crash.matrix.disk import POWER_CUTS, Cut, Disk, write_tree
from tests.crash.matrix.trace import READS, Effect, TraceFiles
from tiered.errors import LocalIOError, RemoteUnavailableError, TieredError
from tiered.local.disk.files import FileState, PosixFiles, translate
from tiered.store.base import Outcome, StoreRequest
from tiered.testing.clock import SeededIds

if TYPE_CHECKING:
    from tests.sim.tiers.world import World

GROWING = frozenset({"open", "mkdir"})
"""What takes room for a name."""
LOCKS = (".lock", "tiered-uploader.lock")


class Killed(KeyboardInterrupt):
    """The process ends here. Not an Exception: nothing of the product may handle it."""


class Process:
    """What dies together: its files, its connections, its dice. ``fuse``: effects that it has left; -1 without end."""

    def __init__(self, world: World, machine: Machine | None, name: str) -> None:
        self.world = world
        self.machine = machine
        self.name = name
        self.ids = SeededIds(world.rng.getrandbits(64))
        self.fuse = -1
        self.dead = False
        self.buried = False
        self.files = ProcessFiles(self, machine) if machine is not None else None
        if machine is not None:
            machine.processes.append(self)

    def breathe(self) -> None:
        """Before each effect: the last one of a process that is to die never happens."""
        if self.dead:
            if self.buried:
                raise RemoteUnavailableError("the process is dead")
            raise Killed
        if self.fuse == 0:
            self.die()
            raise Killed
        self.fuse -= self.fuse > 0

    def die(self) -> None:
        """Every file is closed, so that locks are gone; nothing that still runs has an effect."""
        self.dead = True
        if self.files is not None and self.machine is not None:
            self.files.abandon()
            self.machine.processes.remove(self)
            self.machine.clear_notes()


class ProcessFiles(TraceFiles):
    """The disk as one process has it open; every effect goes into the machine's."""

    def __init__(self, process: Process, machine: Machine) -> None:
        super().__init__(machine.root)
        self.process = process
        self.machine = machine
        self._opened = machine.next_handle()
        self._looks = 0

    def _effect(self, effect: Effect) -> None:
        self.process.breathe()
        if effect.name in GROWING and self.machine.room == 0 and not effect.path.exists():
            raise _no_space(effect)
        if effect.name not in READS or effect.name == "open_read":
            self.machine.disk.apply(effect)
        if effect.name not in READS:
            for path in (effect.path, effect.target):
                if path is not None:
                    self.machine.changes[path] += 1

    def state(self, path: Path) -> FileState | None:
        """Return a time that differs after each change: on a real disk two changes may share one."""
        found = super().state(path)
        return None if found is None else found._replace(modified_ns=found.modified_ns + self.machine.changes[path])

    def modified_ns(self, folder: Path, names: Sequence[str]) -> list[int]:
        """Return other times at each look: here changes follow one another faster than a real disk's clock ticks."""
        self.process.breathe()
        self._looks += 1
        return [self._looks] * len(names)

    def _check(self, handle: int) -> None:
        if handle not in self._open:
            self.process.breathe()
            raise LocalIOError(f"handle {handle} is closed")

    def close(self, handle: int) -> None:
        if handle in self._open:  # after its end the number may be another file's
            super().close(handle)

    def write_at(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._check(handle)
        serial, path = self._open[handle]
        kept = bytes(data[: self.machine.take_room(len(data))])
        effect = Effect("write", path, serial, position=position, data=kept)
        self._effect(effect)
        PosixFiles.write_at(self, handle, kept, position)
        if len(kept) < len(data):
            raise _no_space(effect)

    def try_lock(self, handle: int, path: Path) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def read_into(self, handle: int, buffer: bytearray | memoryview, position: int) -> int:
        self._check(handle)
        return super().read_into(handle, buffer, position)

    def size(self, handle: int) -> int:
        self._check(handle)
        return super().size(handle)

    def truncate(self, handle: int, size: int) -> None:
        self._check(handle)
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self._check(handle)
        super().sync(handle)


def _no_space(effect: Effect) -> TieredError:
    return translate(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), effect.name, effect.path)


class Machine:
    """Everything under ``root``; the log directory is ``root/log``.

    ``room``: bytes until the disk is full, None for one that never is.
    """

    def __init__(self, world: World, root: Path) -> None:
        self.world = world
        self.root = root
        self.path = root / "log"
        self.processes: list[Process] = []
        self.room: int | None = None
        self._handles = 0
        root.mkdir()
        self.disk = Disk(root)
        self.changes: Counter[Path] = Counter()

    def next_handle(self) -> int:
        """Where the numbers of one process's handles begin."""
        self._handles += 1
        return self._handles * 1_000_000

    def take_room(self, size: int) -> int:
        """How many of ``size`` bytes the disk has room for."""
        if self.room is None:
            return size
        taken = min(size, self.room)
        self.room -= taken
        return taken

    def kill_all(self) -> None:
        """Every process of the machine."""
        for process in list(self.processes):
            process.die()

    def cut_power(self, dice: random.Random) -> None:
        """What was not fsynced is lost, in one of the ways of the crash matrix."""
        self.kill_all()
        losses = self.disk.losses()
        kind = dice.choice((*POWER_CUTS, "suffix"))
        tree = self.disk.state(Cut(kind, dice, dice.choice(losses) if kind == "suffix" and losses else None))
        shutil.rmtree(self.root)
        write_tree(tree, self.root)
        self.disk = Disk.load(self.root)
        self.clear_notes()

    def copy(self) -> dict[str, bytes]:
        """The log directory as it is, for :meth:`put_back`."""
        found = [path for path in sorted(self.path.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.path)): path.read_bytes() for path in found}

    def put_back(self, copy: dict[str, bytes]) -> None:
        """The log directory is an older one again; all of it is durable."""
        self.kill_all()
        shutil.rmtree(self.path, ignore_errors=True)
        for name, data in copy.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.disk = Disk.load(self.root)
        self.clear_notes()

    def clear_notes(self) -> None:
        """A lock that nobody holds names this test's process, which lives; a real one would name a dead one."""
        for name in LOCKS:
            with contextlib.suppress(FileNotFoundError), (self.path / name).open("r+b") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                file.truncate(0)


class SimStore:
    """The bucket as one process reaches it: others may do something before each request and after it."""

    url = "memory://sim"

    def __init__(self, process: Process) -> None:
        self._process = process

    def execute(self, request: StoreRequest) -> Outcome:
        """One request, with the world's faults."""
        process = self._process
        process.breathe()
        process.world.between(process)
        process.breathe()
        try:
            return process.world.bucket.execute(request)
        finally:
            process.world.look()
            process.world.between(process)
            if process.dead:
                process.breathe()

    def close(self) -> None:
        """Nothing is held."""


class SimAioStore:
    """The same for a daemon; a request takes time, in which all others go on."""

    url = "memory://sim"

    def __init__(self, process: Process, pause: Any) -> None:
        self._store = SimStore(process)
        self._process = process
        self._pause = pause

    async def execute(self, request: StoreRequest) -> Outcome:
        """One request. The buried throw no dice: the order in which their tasks end is the interpreter's."""
        if not self._process.buried:
            await self._pause()
        outcome = self._store.execute(request)
        await self._pause()
        return outcome

    async def close(self) -> None:
        """Nothing is held."""
