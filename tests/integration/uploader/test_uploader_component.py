"""The uploader inside an application, through the public facade."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.integration.uploader.logs import T0, judge
from tiered.errors import ClosedError, LocalIOError, TieredError
from tiered.format.batch import encode_batch
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PAUSE_NAME, UploadCheckpoint
from tiered.model import NewRecord, TopicPartition
from uploader import Uploader
from uploader.component import AttachedUploader


def test_sync_waits_for_the_component(tmp_path: Path) -> None:
    url = f"memory://component-{tmp_path.name}"
    with tiered.open(tmp_path / "log", remote=url, uploader=Uploader()) as log:
        topic = log.topic("t", create=True)
        for number in range(100):
            topic.append(b"%d" % number)
        log.sync(timeout=30)
        assert log.positions()[T0].uploaded_offset == 100
        topic.append(b"more")
        log.sync(timeout=30)
        assert log.positions()[T0].uploaded_offset == 101
        assert log._uploader is not None
        (attached,) = log._uploader._parts
        assert isinstance(attached, AttachedUploader)
        assert [line["phase"] for line in attached.status()["partitions"]] == ["claimed"]
    assert UploadCheckpoint(tmp_path / "log", PosixFiles()).read()[T0].end_offset == 101
    assert judge(url, tmp_path / "log", [T0]) == 2


def stop(log: tiered.Log) -> AttachedUploader:
    """The uploader of a log, whose event loop was stopped: it has ended by itself."""
    assert log._uploader is not None
    (attached,) = log._uploader._parts
    assert isinstance(attached, AttachedUploader)
    attached._loop.call_soon_threadsafe(attached._loop.stop)
    attached._thread.join(30)
    return attached


APPENDS: dict[str, Callable[[tiered.Topic], object]] = {
    "append": lambda topic: topic.append(b"w"),
    "append, disk": lambda topic: topic.append(b"w", durability="disk"),
    "append_many": lambda topic: topic.append_many([b"w"]),
    "append_batches": lambda topic: topic.append_batches(encode_batch([NewRecord(b"w")])),
    "appender": lambda topic: topic.appender().append(b"w").result(30),
    "another topic": lambda topic: topic.append(b"w"),
}


@pytest.mark.parametrize("way", APPENDS)
def test_the_next_append_says_that_the_uploader_ended(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, append = f"memory://ended-{tmp_path.name}", APPENDS[way]
    with tiered.open(tmp_path / "log", remote=url, uploader=Uploader()) as log:
        topic = log.topic("t", create=True)
        topic.append(b"v")
        log.sync(timeout=30)
        assert topic.positions(0).uploader_error is None
        attached = stop(log)
        if way == "another topic":
            topic = log.topic("other", create=True)
        end = topic.positions(0).end_offset
        with pytest.raises(TieredError, match="ended by itself, and this call appended nothing") as caught:
            append(topic)
        assert caught.value.__cause__ is attached.error
        assert topic.positions(0).end_offset == end
        append(topic)  # said once: appends go on with the disk alone
        topic.flush()
        assert topic.positions(0).end_offset == end + 1
        assert topic.positions(0).uploader_error == log.positions()[TopicPartition(topic.name, 0)].uploader_error
        assert "Event loop stopped" in (topic.positions(0).uploader_error or "")
        with pytest.raises(TieredError, match="Event loop stopped"):
            attached.status()
        with pytest.raises(TieredError, match="Event loop stopped"):
            log.sync(timeout=30)
    said = [record for record in caplog.records if "ended by itself, records stay on this disk" in record.getMessage()]
    assert [(record.name, record.levelname) for record in said] == [("tiered", "ERROR")]
    with tiered.open(tmp_path / "log", remote=url, uploader=Uploader()) as log:
        log.sync(timeout=30)
        assert log.topic(topic.name).positions(0).uploaded_offset == end + 1


async def test_on_an_event_loop_the_next_append_says_it_too(tmp_path: Path) -> None:
    async with tiered.aio.open(tmp_path / "log", remote=f"memory://{tmp_path.name}", uploader=Uploader()) as log:
        topic = await log.topic("t", create=True)
        await topic.append(b"v")
        stop(log._log)
        with pytest.raises(TieredError, match="ended by itself"):
            await topic.append(b"w")
        assert (await topic.append(b"w")).offset == 1
        assert "Event loop stopped" in (topic.positions(0).uploader_error or "")


def test_an_uploader_that_is_closed_has_no_error(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=f"memory://{tmp_path.name}", uploader=Uploader()) as log:
        assert log._uploader is not None
        (attached,) = log._uploader._parts
        log.topic("t", create=True).append(b"v")
        attached.close(30)
        assert log.positions()[T0].uploader_error is None
        assert log.topic("t").append(b"w").offset == 1
        assert isinstance(attached, AttachedUploader)
        with pytest.raises(ClosedError):
            attached.status()


def test_a_status_raises_the_error_of_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=f"memory://{tmp_path.name}", uploader=Uploader()) as log:
        assert log._uploader is not None
        (attached,) = log._uploader._parts
        assert isinstance(attached, AttachedUploader)
        (tmp_path / "log" / PAUSE_NAME).mkdir()
        with pytest.raises(LocalIOError, match=PAUSE_NAME):
            attached.status()
        (tmp_path / "log" / PAUSE_NAME).rmdir()


@pytest.mark.parametrize("refused", ["tiered-tick", "tiered-uploader"])
def test_where_no_thread_can_be_started_nothing_stays_open(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    place: dict[str, Any] = {"remote": f"memory://{tmp_path.name}", "uploader": Uploader()}
    with pytest.raises(TieredError, match="can't create new thread"):
        tiered.open(tmp_path / "log", **place)
    monkeypatch.undo()
    tiered.open(tmp_path / "log", **place).close()
