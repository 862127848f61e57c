"""What the daemon believes of its bucket: the root that it reads back after a commit, and its own newest claim."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.engine import sealed_in
from tests.unit.log.lying import TP, LyingStore, fill, opened
from tiered.engine.bucket import Bucket
from tiered.engine.disk import LogDirectory
from tiered.engine.journal import Journal
from tiered.errors import CommitUnknownError, ConfigError, LogDestroyedError
from tiered.format.keys import topic_key
from tiered.remote.topics import Registrant, register_topic
from tiered.store.base import Delete
from tiered.store.driver import drive
from tiered.store.location import ThreadedAioStore
from tiered.store.unique_upload import PartSizes
from tiered.testing.clock import FakeClock, SeededIds

Made = tuple[Bucket, LogDirectory, LyingStore]


@pytest.fixture
async def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Made]:
    log, _, _ = opened(tmp_path)
    fill(log)
    log.close()
    clock, store = FakeClock(), LyingStore()

    async def at_once(_: float) -> None:
        """The pauses between two looks at a root."""

    monkeypatch.setattr("asyncio.sleep", at_once)
    directory = LogDirectory(tmp_path, clock=clock, ids=SeededIds(2))
    directory.acquire()
    journal = Journal(tmp_path, directory.files)
    aio = ThreadedAioStore(store)
    sizes = PartSizes(1 << 30, 8 << 20)
    bucket = Bucket(aio, directory, journal, clock=clock, ids=SeededIds(3), owner="d", sizes=sizes)
    yield bucket, directory, store
    await bucket.close()
    journal.close()
    directory.release()


async def committed(made: Made, between: Callable[[], Awaitable[object]] | None = None) -> int:
    """The first segment, from its claim to its commit."""
    bucket, directory, _ = made
    (segment, *_) = sealed_in(directory.scan())
    granted = await bucket.drive(bucket.steps.claim(TP))
    row = await bucket.drive(bucket.steps.upload(TP, segment, granted.claim_epoch))
    if between is not None:
        await between()
    return (await bucket.drive(bucket.steps.commit(TP, granted.claim_epoch, [row]))).next_offset


async def register(made: Made) -> None:
    await made[0].drive(made[0].steps.register("t"))


async def test_a_commit_whose_root_does_not_show_it_is_not_one(made: Made) -> None:
    await register(made)
    with pytest.raises(CommitUnknownError, match="cannot be read back"):
        await committed(made)
    made[2].lies = False


async def test_rows_of_an_older_claim_are_not_committed_under_a_newer_one(made: Made) -> None:
    made[2].lies = False
    await register(made)
    with pytest.raises(CommitUnknownError, match="under claim epoch 1, and the current one is 2"):
        await committed(made, lambda: made[0].drive(made[0].steps.claim(TP)))


async def test_another_topic_of_that_name_is_not_uploaded_over(made: Made) -> None:
    theirs = UUID(int=7)
    steps = register_topic("t", theirs, 1, "", Registrant("other"))
    drive(made[2], steps, clock=FakeClock(), ids=SeededIds(4))
    with pytest.raises(ConfigError, match=str(theirs)):
        await register(made)


async def test_a_bucket_that_was_emptied_is_told(made: Made) -> None:
    bucket, directory, store = made
    directory.scan()
    await register(made)
    await bucket.drive(bucket.steps.check_uploaded())  # nothing was uploaded from here so far
    await bucket.drive(bucket.steps.claim(TP))
    await bucket.drive(bucket.steps.check_uploaded())
    store.execute(Delete((topic_key("t"),)))
    with pytest.raises(LogDestroyedError, match="does not know it"):
        await bucket.drive(bucket.steps.check_uploaded())
