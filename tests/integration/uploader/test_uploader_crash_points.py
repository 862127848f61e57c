"""A crash before and after every single request to the store: the next start leaves nothing undone, twice or behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from pathlib import Path

import pytest

from tests.integration.uploader.logs import T0, T1, judge, make_log
from tests.integration.uploader.stores import location
from tiered.engine.drain import DrainMode
from tiered.store.base import Outcome, Store, StoreRequest
from tiered.store.location import StoreLocation, ThreadedAioStore
from uploader.config import Settings
from uploader.service import Place, Service

SETTINGS = Settings(http=None, commit_wait=1)


class Crashing:
    """Freezes at request ``at``: before it is sent, or after it was carried out and before the answer is seen."""

    def __init__(self, inner: Store, at: int, *, after: bool, disk: Path, image: Path) -> None:
        self._inner = inner
        self._aio = ThreadedAioStore(inner)
        self._left = at
        self._after = after
        self._disk, self._image = disk, image
        self.crashed = asyncio.Event()

    @property
    def url(self) -> str:
        return self._inner.url

    async def execute(self, request: StoreRequest) -> Outcome:
        if self.crashed.is_set():
            await asyncio.Event().wait()
        self._left -= 1
        if self._left >= 0:
            return await self._aio.execute(request)
        if self._after:
            self._inner.execute(request)
        # The disk as the crash leaves it: what threads do later does not count.
        shutil.copytree(self._disk, self._image, copy_function=copy_if_there)
        self.crashed.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        await self._aio.close()


def copy_if_there(source: str, target: str) -> None:
    """A thread may rename a temporary file at this moment."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


async def run_to_crash(name: str, disk: Path, image: Path, at: int, *, after: bool) -> bool:
    """Whether there was a request ``at`` to crash at."""
    raw = StoreLocation.parse(f"memory://{name}").raw_store()
    store = Crashing(raw, at, after=after, disk=disk, image=image)
    service = Service(Place(disk, location(name, store)), SETTINGS)
    run = asyncio.create_task(service.run(oneshot=DrainMode.ALL))
    crash = asyncio.create_task(store.crashed.wait())
    await asyncio.wait([run, crash], return_when=asyncio.FIRST_COMPLETED)
    run.cancel()
    crash.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    return store.crashed.is_set()


@pytest.mark.parametrize(("after", "step"), [(False, 4), (True, 1)], ids=["before", "after"])
async def test_a_crash_at_every_request(tmp_path: Path, after: bool, step: int) -> None:
    """Before one request is after the last, but for what runs at the same time: fewer of those."""
    make_log(tmp_path / "template", records=90)
    for at in itertools.count(0, step):
        disk, image, name = tmp_path / f"disk{at}", tmp_path / f"image{at}", f"crash-{after}-{at}-{tmp_path.name}"
        shutil.copytree(tmp_path / "template", disk)
        crashed = await run_to_crash(name, disk, image, at, after=after)
        survivor = image if crashed else disk
        ending = await Service(Place(survivor, location(name, None)), SETTINGS).run(oneshot=DrainMode.ALL)
        assert ending.code == 0, f"request {at}: {ending.reason}"
        assert judge(f"memory://{name}", survivor, [T0, T1]) == 4
        if not crashed:
            assert at > 30
            return
    raise AssertionError


async def test_the_crash_that_would_show_without_the_journal(tmp_path: Path) -> None:
    """The test above has teeth: with the journal lost, the object of the dead claim stays."""
    make_log(tmp_path / "template", records=90)
    for at in itertools.count(10):
        disk, image, name = tmp_path / f"disk{at}", tmp_path / f"image{at}", f"teeth-{at}-{tmp_path.name}"
        shutil.copytree(tmp_path / "template", disk)
        assert await run_to_crash(name, disk, image, at, after=True), "no such crash was found"
        (image / "tiered-uploader.journal").unlink()
        await Service(Place(image, location(name, None)), SETTINGS).run(oneshot=DrainMode.ALL)
        if orphans(f"memory://{name}", image):
            return


def orphans(url: str, directory: Path) -> bool:
    try:
        judge(url, directory, [T0, T1])
    except AssertionError as error:
        return "objects that nobody names" in str(error)
    return False
