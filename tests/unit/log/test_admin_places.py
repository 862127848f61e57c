"""Operations on whole logs take URLs and paths, as ``open`` does; without a store object, a clock or a path object."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tiered import admin, aio
from tiered.errors import ConfigError, NotFoundError, UnknownTopicError
from tiered.model import TopicPartition

TP = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log below ``log``, uploaded to ``bucket``."""
    with tiered.open(tmp_path / "log", remote=tmp_path / "bucket") as log:  # type: ignore[arg-type]  # a path is taken
        topic = log.topic("t", create=True)
        topic.append(b"v", key=b"k")
        topic.append(b"w", key=b"<b>")
        log.sync(timeout=60)
    return tmp_path


def places(root: Path) -> list[str | Path]:
    """One bucket, in each way to name it."""
    return [root / "bucket", str(root / "bucket"), (root / "bucket").as_uri()]


def test_the_library(log: Path) -> None:
    for number, place in enumerate(places(log)):
        assert admin.check(None, place).errors == 0
        assert admin.check(str(log / "log"), place, "t").errors == 0
        assert admin.restore(str(log / f"copy{number}"), place, "t", since="2020-01-01").segments == 1
        with tiered.open_reader(log_dir=log / f"copy{number}") as reader:
            assert [record.value for record in reader.topic("t").read()] == [b"v", b"w"]
        assert admin.repair(None, place).details.actions == ()
        assert admin.snapshot(place, f"s{number}").partitions[0][0] == TP
    plan = admin.rejoin(str(log / "log"), [TP])
    assert [aside.tp for aside in plan.details.partitions] == [TP]
    plan.apply()


async def test_asyncio(log: Path) -> None:
    for number, place in enumerate(places(log)):
        assert (await aio.admin.check(str(log / "log"), place)).errors == 0
        assert (await aio.admin.restore(str(log / f"copy{number}"), place)).segments == 1
        assert (await aio.admin.repair(None, place, TP)).details.actions == ()
        assert (await aio.admin.snapshot(place, f"s{number}", [TP])).skipped == ()
    await (await aio.admin.rejoin(str(log / "log"), [TP])).apply()
    with pytest.raises(UnknownTopicError):
        await aio.admin.erase(places(log)[0], "u", keys=[b"k"])
    plan = await aio.admin.erase(places(log)[0], "t", keys=[b"k"])
    assert (await plan.apply()).proven is False  # snapshots hold the old object


@pytest.mark.parametrize("now", [False, True])
def test_an_erasure_is_planned_and_then_applied(log: Path, now: bool) -> None:
    url = (log / "bucket").as_uri()
    with pytest.raises(ConfigError, match="no key, prefix or time"):
        admin.erase(url, "t")
    for partition in (1, -1):
        with pytest.raises(UnknownTopicError):
            admin.erase(url, "t", partition=partition, keys=[b"k"])
    plan = admin.erase(url, "t", keys=[b"k"], now=now)
    assert "1 records of 1 segments" in repr(plan)
    with tiered.open_reader(url) as reader:
        assert [record.value for record in reader.topic("t").read()] == [b"v", b"w"]
        report = plan.apply()
        assert [record.value for record in reader.topic("t").read()] == [b"w"]
    assert report.proven is now
    assert len(report.receipts) == 1
    assert ("gc.grace.ms" in report._repr_html_()) is not now


def test_public_objects_show_themselves(log: Path) -> None:
    url = (log / "bucket").as_uri()
    report = admin.check(log / "log", url)
    assert repr(report) == "<CheckReport OK: 1 partitions>"
    with tiered.open(log / "log", remote=url) as opened:
        topic = opened.topic("t")
        assert "<td>2</td>" in topic._repr_html_()
        assert not {"log", "chosen", "check_partition"} & {*dir(topic)}
        assert {"append", "read"} <= {*dir(topic)}
        assert not [name for name in dir(opened) if name.startswith("_") and not name.startswith("__")]
    (log / "log" / "t-0" / "00000000000000000000.log").write_bytes(b"x")
    damaged = admin.check(log / "log")
    assert str(damaged).count("\n") == len(damaged.findings) > 0
    for each in (admin.repair(log / "log", url), admin.restore(log / "copy", url, dry_run=True), damaged):
        assert 20 < len(repr(each)) < 200
        assert each._repr_html_().startswith("<table>")
    tiered.open(log / "a<b>").close()
    with tiered.open_reader(url, log_dir=log / "a<b>") as reader:
        assert "a&lt;b&gt;" in reader._repr_html_()
        assert url in reader._repr_html_()


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for place in places(tmp_path):
        for call in (lambda place=place: admin.check(None, place), lambda place=place: admin.restore("x", place)):
            with pytest.raises(NotFoundError):
                call()
        with pytest.raises(NotFoundError):
            await aio.admin.check(None, place)
    assert list(tmp_path.iterdir()) == []


async def test_words_of_s3_are_taken_where_open_takes_them(log: Path) -> None:
    for place in places(log):
        with pytest.raises(ConfigError, match="endpoint_url cannot be used with file://"):
            admin.check(None, place, endpoint_url="http://127.0.0.1:9")
        with pytest.raises(ConfigError, match="region cannot be used with file://"):
            await aio.admin.restore(log / "new", place, region="eu-central-1")
    with pytest.raises(ConfigError, match="remote=5"):
        admin.check(None, 5)  # type: ignore[arg-type]  # the bad input
    with pytest.raises(ConfigError, match="selected=5"):
        admin.repair(log / "log", selected=5)  # type: ignore[arg-type]  # the bad input
