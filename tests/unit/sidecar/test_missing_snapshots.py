"""A broker before 2.8 keeps the newest producer snapshots only: the others are derived from the log start on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tests.unit.sidecar.broker import Broker, read, sidecar, values
from tiered.cli.main import run
from tiered.engine.drain import DrainMode
from tiered.engine.reports import Exit
from tiered.format.local_names import snapshot_name
from tiered.format.producer_snapshot import decode_snapshot
from tiered.model import TopicPartition
from tiered.sidecar.mirror import beside
from tiered.store.location import StoreLocation
from uploader.config import Settings
from uploader.service import Service, ServicePlace

T = TopicPartition("t", 0)


def log_dir(broker: Path, url: str) -> Exit:
    """``tiered-uploader sync --no-wait --log-dir`` of the broker's own directory."""
    place = ServicePlace(broker, StoreLocation.parse(url))
    return asyncio.run(Service(place, Settings(http=None)).run(oneshot=DrainMode.SEALED))


def plain_log(path: Path) -> Path:
    """Write a log of small segments without producer ids."""
    with tiered.open(path) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 1500})
        for number in range(0, 100, 5):
            topic.append_many([b"%03d" % (number + each) + b"x" * 60 for each in range(5)])
    return path


def drop_snapshots(broker: Broker, *, kept: int) -> None:
    paths = sorted(broker.folder.glob("*.snapshot"))
    for path in paths[: len(paths) - kept]:
        path.unlink()


@pytest.mark.parametrize("upload", [sidecar, log_dir])
@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.parametrize("producers", [True, False])
def test_old_segments_without_snapshots_are_uploaded(
    finished: Path, tmp_path: Path, url: str, producers: bool, kept: int, upload: Callable[[Path, str], Exit]
) -> None:
    log = finished if producers else plain_log(tmp_path / "plain")
    broker = Broker(log, tmp_path / "kafka", T)
    end = broker.roll(5)
    broker.retain(1)
    drop_snapshots(broker, kept=kept)
    before = broker.contents()
    ending = upload(broker.path, url)
    assert (ending.code, broker.contents().items() >= before.items()) == (0, True), ending
    for isolation in ("read_uncommitted", "read_committed"):
        expected = values(log, "t", isolation=isolation)
        held = {at: value for at, value in expected.items() if broker.bases[1] <= at < end}
        assert read(url, "t", isolation=isolation) == held


def producers_at(folder: Path, offset: int) -> list[tuple[int, ...]]:
    """Return the producers that the snapshot at ``offset`` holds."""
    return [tuple(each) for each in decode_snapshot((folder / snapshot_name(offset)).read_bytes())]


def test_producers_are_kept_when_links_are_deleted(broker: Broker, finished: Path, url: str) -> None:
    """The next segment is judged by the producers at its start, which no broker's file holds."""
    ours, drained = beside(broker.path) / "t-0", 1
    for sealed in (2, 3, 4, 5):
        broker.roll(sealed)
        broker.retain(drained)
        drop_snapshots(broker, kept=0)
        ending = sidecar(broker.path, url)
        assert ending.code == 0, ending
        drained = sealed - 1
    assert producers_at(ours, broker.bases[4]) == producers_at(finished / "t-0", broker.bases[4])
    held = values(finished, "t", isolation="read_committed")
    expected = {at: value for at, value in held.items() if broker.bases[1] <= at < broker.bases[5]}
    assert read(url, "t", isolation="read_committed") == expected


def test_a_fresh_private_directory_takes_the_producers_of_the_bucket(broker: Broker, finished: Path, url: str) -> None:
    broker.roll(3)
    drop_snapshots(broker, kept=0)
    assert sidecar(broker.path, url).code == 0
    shutil.rmtree(beside(broker.path))
    end = broker.roll(5)
    broker.retain(3)
    drop_snapshots(broker, kept=0)
    ending = sidecar(broker.path, url)
    assert ending.code == 0, ending
    ours = beside(broker.path) / "t-0"
    assert producers_at(ours, broker.bases[3]) == producers_at(finished / "t-0", broker.bases[3])
    assert read(url, "t") == {at: value for at, value in values(finished, "t").items() if at < end}


@pytest.mark.parametrize("upload", [sidecar, log_dir])
@pytest.mark.parametrize("retained", [2, 3])
def test_segments_after_deleted_uploaded_ones_take_the_producers_of_the_bucket(
    broker: Broker, finished: Path, url: str, retained: int, upload: Callable[[Path, str], Exit]
) -> None:
    broker.roll(3)
    drop_snapshots(broker, kept=0)
    assert upload(broker.path, url).code == 0
    end = broker.roll(5)
    broker.retain(retained)
    drop_snapshots(broker, kept=0)
    ending = upload(broker.path, url)
    assert ending.code == 0, ending
    for isolation in ("read_uncommitted", "read_committed"):
        expected = values(finished, "t", isolation=isolation)
        assert read(url, "t", isolation=isolation) == {at: value for at, value in expected.items() if at < end}
    with tiered.open(broker.path.with_name("new"), remote=url) as log:  # resumes with the producers of the bucket
        log.topic("t")
    folder = broker.path.with_name("new") / "t-0"
    assert producers_at(folder, end) == producers_at(finished / "t-0", end)


def test_status_calls_no_segment_damaged_that_the_bucket_can_judge(
    broker: Broker, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.roll(3)
    drop_snapshots(broker, kept=0)
    assert log_dir(broker.path, url).code == 0
    broker.roll(5)
    broker.retain(3)
    drop_snapshots(broker, kept=0)
    run(["status", "--log-dir", str(broker.path), "--remote", url])
    shown = capsys.readouterr()
    assert "t-0" in shown.out
    assert "the upload waits" not in shown.out + shown.err
