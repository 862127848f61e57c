"""Whole-log operations take URLs and paths, as ``open`` does; without a store object, a clock or a path object."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tiered import aio
from tiered.errors import ConfigError, NotFoundError
from tiered.model import TopicPartition

TP = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log below ``log``, uploaded to ``bucket``."""
    with tiered.open(tmp_path / "log", remote=tmp_path / "bucket") as log:  # type: ignore[arg-type]  # a path is taken
        log.topic("t", create=True).append(b"v", key=b"k")
        log.sync(timeout=60)
    return tmp_path


def places(root: Path) -> list[str | Path]:
    """One bucket, in each way to name it."""
    return [root / "bucket", str(root / "bucket"), (root / "bucket").as_uri()]


def test_the_library(log: Path) -> None:
    for number, place in enumerate(places(log)):
        assert tiered.check(None, place).errors == 0
        assert tiered.check(str(log / "log"), place).errors == 0
        assert tiered.restore(place, str(log / f"copy{number}")).segments == 1
        with tiered.open_reader(log_dir=log / f"copy{number}") as reader:
            assert [record.value for record in reader.topic("t").read()] == [b"v"]
        assert tiered.plan_repair(place).actions == ()
    assert [plan.tp for plan in tiered.plan_rejoin(str(log / "log"), [TP]).partitions] == [TP]
    tiered.rejoin(tiered.plan_rejoin(log / "log", [TP]))


async def test_asyncio(log: Path) -> None:
    for number, place in enumerate(places(log)):
        assert (await aio.check(str(log / "log"), place)).errors == 0
        assert (await aio.restore(place, str(log / f"copy{number}"))).segments == 1
        assert (await aio.plan_repair(place, [TP])).actions == ()
    await aio.rejoin(await aio.plan_rejoin(str(log / "log"), [TP]))


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for place in places(tmp_path):
        for call in (lambda place=place: tiered.check(None, place), lambda place=place: tiered.restore(place, "x")):
            with pytest.raises(NotFoundError):
                call()
        with pytest.raises(NotFoundError):
            await aio.check(None, place)
    assert list(tmp_path.iterdir()) == []


async def test_words_of_s3_are_taken_where_open_takes_them(log: Path) -> None:
    for place in places(log):
        with pytest.raises(ConfigError, match="endpoint_url mean nothing to file://"):
            tiered.check(None, place, endpoint_url="http://127.0.0.1:9")
        with pytest.raises(ConfigError, match="region mean nothing to file://"):
            await aio.restore(place, log / "new", region="eu-central-1")
    with pytest.raises(ConfigError, match="store=5"):
        tiered.check(None, 5)  # type: ignore[arg-type]  # the bad input
