"""A bucket in a log directory, or a log directory in a bucket's data, is refused before anything is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tiered
import tiered.aio
from tests.support.admin import restore
from tiered.errors import ConfigError
from tiered.restore.plan import RestoreOptions
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from uploader.config import Settings


@pytest.mark.parametrize(
    ("log", "bucket"),
    [
        ("log", "log"),
        ("log", "log/bucket"),
        ("log", "linked"),
        ("log", "linked/bucket"),
        ("bucket/topics/log", "bucket"),
        ("bucket/a0/log", "bucket"),
    ],
)
def test_an_overlap_is_refused_by_every_face(tmp_path: Path, log: str, bucket: str) -> None:
    directory, remote = tmp_path / log, (tmp_path / bucket).as_uri()
    directory.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "linked").symlink_to(tmp_path / "log")
    before = sorted(tmp_path.rglob("*"))

    async def opened() -> None:
        await tiered.aio.open(directory, remote)

    with pytest.raises(ConfigError, match="overlap"):
        tiered.open(directory, remote)
    with pytest.raises(ConfigError, match="overlap"):
        asyncio.run(opened())
    with pytest.raises(ConfigError, match="overlap"):
        Settings(log_dir=directory, remote=remote).place()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_path_with_dots_is_resolved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="overlap"):
        tiered.open(tmp_path / "log", str(tmp_path / "other" / ".." / "log"))
    with pytest.raises(ConfigError, match="overlap"):
        StoreLocation.parse(tmp_path.as_uri()).refuse_overlap(tmp_path / "x" / "..")


def test_folders_beside_each_other_are_none(tmp_path: Path) -> None:
    for log, bucket in (("log", "logs"), ("bucket2/log", "bucket2"), ("log", "bucket")):
        StoreLocation.parse((tmp_path / bucket).as_uri()).refuse_overlap(tmp_path / log)


@pytest.mark.parametrize("to", ["bucket", "bucket/topics/new", "linked/topics"])
@pytest.mark.parametrize("if_empty", [False, True])
def test_a_restore_into_the_bucket_is_refused(tmp_path: Path, to: str, if_empty: bool) -> None:
    (tmp_path / "bucket" / "topics").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "bucket")
    place, options = StoreLocation.parse((tmp_path / "bucket").as_uri()), RestoreOptions(if_empty=if_empty)
    before = sorted(tmp_path.rglob("*"))

    async def restored() -> None:
        store = place.open_aio(StoreOptions(create=False))
        try:
            await tiered.aio.admin.restore(tmp_path / to, store, if_empty=if_empty)
        finally:
            await store.close()

    store = place.open(StoreOptions(create=False))
    with pytest.raises(ConfigError, match="overlap"):
        restore(store, tmp_path / to, options)
    store.close()
    with pytest.raises(ConfigError, match="overlap"):
        asyncio.run(restored())
    assert sorted(tmp_path.rglob("*")) == before
