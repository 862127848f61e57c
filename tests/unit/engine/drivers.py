"""Every way to run the engine on a log directory, to its end or until it is killed at a request."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.integration.uploader.stores import location
from tiered.clock import SystemClock, SystemIds
from tiered.config import LogConfig
from tiered.engine.drain import DrainMode
from tiered.errors import TieredError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.log import Log
from tiered.store.base import Outcome, Put, Store, StoreRequest
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from uploader.component import AttachedUploader
from uploader.config import Settings
from uploader.service import Service, ServicePlace

SETTINGS = Settings(http=None, commit_wait=1, scan=100)
SECONDS = 60.0
Fatal = Callable[[StoreRequest], bool]


class Killed(BaseException):
    """The process is gone."""


class Death:
    """Kills whoever uses its store, before the first request that ``fatal`` names; ``image`` is the disk as it was."""

    def __init__(self, inner: Store, disk: Path, image: Path, fatal: Fatal, *, after: bool) -> None:
        self.inner = inner
        self.came = threading.Event()
        self._disk, self._image = disk, image
        self._fatal = fatal
        self._after = after
        self._lock = threading.Lock()

    def execute(self, request: StoreRequest) -> Outcome:
        """One request of a process that lives; Killed from then on."""
        with self._lock:
            if self.came.is_set():
                raise Killed
            if self._fatal(request):
                if self._after:
                    self.inner.execute(request)
                shutil.copytree(self._disk, self._image, copy_function=_copy_if_there)
                for lock in (".lock", "tiered-uploader.lock"):
                    (self._image / lock).write_bytes(b"")  # whoever died cannot be asked
                self.came.set()
                raise Killed
        return self.inner.execute(request)


def _copy_if_there(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # a temporary file, renamed at this moment
        shutil.copy2(source, target)


class DyingStore:
    """Of an application's own thread."""

    def __init__(self, death: Death) -> None:
        self._death = death
        self.url = death.inner.url

    def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        return self._death.execute(request)

    def close(self) -> None:
        """Nothing is open."""


class DyingAioStore:
    """Of an event loop: what was under way at the death never comes back."""

    def __init__(self, death: Death) -> None:
        self._death = death
        self.url = death.inner.url

    async def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        with contextlib.suppress(Killed):
            return await asyncio.to_thread(self._death.execute, request)
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """Nothing is open."""


class Driver(Protocol):
    """One way to run the engine."""

    def run(self, disk: Path, bucket: str) -> None:
        """All that the log directory holds is sealed and in the bucket when it returns."""

    def die(self, disk: Path, death: Death) -> None:
        """The same, until ``death`` comes."""


def raw_store(bucket: str) -> Store:
    """The memory store of that name."""
    return StoreLocation.parse(f"memory://{bucket}").raw_store()


def _open(disk: Path, store: Store) -> Log:
    clock, ids = SystemClock(), SystemIds()
    local = LocalTier.open([disk], clock=clock, ids=ids, config=LogConfig(remote=True, disk_reserve_bytes=0))
    return Log(local, store, clock=clock, ids=ids)


class Inline:
    """``log.sync()`` of an application without an uploader."""

    def run(self, disk: Path, bucket: str) -> None:
        with _open(disk, raw_store(bucket)) as log:
            log.sync()

    def die(self, disk: Path, death: Death) -> None:
        with _open(disk, DyingStore(death)) as log, contextlib.suppress(Killed):
            log.sync()


class Component:
    """``tiered.open(..., uploader=Uploader())``."""

    def run(self, disk: Path, bucket: str) -> None:
        place = ServicePlace(disk, location(bucket))
        with _open(disk, raw_store(bucket)) as log:
            log._attach(_Attach(place), place.store)
            log.sync(SECONDS)

    def die(self, disk: Path, death: Death) -> None:
        place = ServicePlace(disk, location("dying", DyingAioStore(death)))
        log = _open(disk, death.inner)
        attach = _Attach(place)
        log._attach(attach, place.store)
        log._seal_all()
        assert attach.attached is not None
        attach.attached.scan_now()
        assert death.came.wait(SECONDS)
        attach.attached.close(0)
        log.close()


class _Attach:
    def __init__(self, place: ServicePlace) -> None:
        self._place = place
        self.attached: AttachedUploader | None = None

    def attach(self, directory: Path, location: StoreLocation, options: StoreOptions) -> AttachedUploader:
        self.attached = AttachedUploader(Service(self._place, SETTINGS))
        return self.attached


class Daemon:
    """``tiered-uploader run``, ended by SIGTERM."""

    def run(self, disk: Path, bucket: str) -> None:
        service = Service(ServicePlace(disk, location(bucket)), SETTINGS)

        async def until_drained() -> int:
            work = asyncio.create_task(service.run(started=lambda: asyncio.get_running_loop().call_soon(service.drain)))
            return (await work).code

        assert asyncio.run(until_drained()) == 0

    def die(self, disk: Path, death: Death) -> None:
        service = Service(ServicePlace(disk, location("dying", DyingAioStore(death))), SETTINGS)
        _seal(disk)
        asyncio.run(_until_dead(service.run(), death))


class OneShot:
    """``tiered-uploader sync --wait``."""

    def run(self, disk: Path, bucket: str) -> None:
        ending = asyncio.run(Service(ServicePlace(disk, location(bucket)), SETTINGS).run(oneshot=DrainMode.ALL))
        assert ending.code == 0, ending.reason

    def die(self, disk: Path, death: Death) -> None:
        service = Service(ServicePlace(disk, location("dying", DyingAioStore(death))), SETTINGS)
        asyncio.run(_until_dead(service.run(oneshot=DrainMode.ALL), death))


async def _until_dead(run: Any, death: Death) -> None:
    work = asyncio.create_task(run)
    await asyncio.to_thread(death.came.wait, SECONDS)
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError, TieredError):
        await work


def _seal(disk: Path) -> None:
    with LocalLog.open(disk, config=LogConfig(remote=True, disk_reserve_bytes=0)) as log:
        for tp in log.partitions():
            log.partition(tp).roll()


DRIVERS: dict[str, Driver] = {
    "log.sync()": Inline(),
    "component": Component(),
    "run": Daemon(),
    "sync --wait": OneShot(),
}


def put_of(suffix: str) -> Fatal:
    """The first PUT of an object whose key ends like this."""
    return lambda request: isinstance(request, Put) and request.key.endswith(suffix)
