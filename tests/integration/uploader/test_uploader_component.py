"""The uploader inside an application, through the public facade."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.integration.uploader.logs import T0, judge
from tiered.clock import SystemClock
from tiered.errors import LockedError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploads import UploadCheckpoint, uploader_lock
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
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


def test_a_fresh_directory_goes_on_where_the_bucket_ended(tmp_path: Path) -> None:
    url = f"memory://resume-{tmp_path.name}"
    with tiered.open(tmp_path / "first", remote=url, uploader=Uploader()) as log:
        log.topic("t", create=True).append(b"one")
        log.sync(timeout=30)
    with tiered.open(tmp_path / "second", remote=url, uploader=Uploader()) as log:
        topic = log.topic("t")
        assert topic.append(b"two").offset == 1
        log.sync(timeout=30)
        assert [record.value for record in topic.read()] == [b"one", b"two"]


def test_a_second_uploader_is_refused(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True)
    place = StoreLocation.parse(f"memory://locked-{tmp_path.name}")
    lock = uploader_lock(tmp_path / "log", PosixFiles())
    lock.acquire(SystemClock())
    try:
        with pytest.raises(LockedError, match="is held by process"):
            Uploader().attach(tmp_path / "log", place, StoreOptions())
    finally:
        lock.release()
    handle = Uploader().attach(tmp_path / "log", place, StoreOptions())
    handle.close(5)
    assert handle.error is None
