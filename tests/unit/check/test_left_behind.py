"""A disk that another volume has left behind holds no other bytes: it only ends earlier."""

from __future__ import annotations

from pathlib import Path

import tiered
from tests.support.admin import check
from tiered.check.findings import Severity
from tiered.store.location import open_store


def errors(directory: Path, url: str) -> list[str]:
    store = open_store(url)
    try:
        return [each.code for each in check(directory, store).findings if each.severity is Severity.ERROR]
    finally:
        store.close()


def test_a_disk_that_ends_where_another_volume_went_on_is_whole(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    for name in ("first", "second"):
        with tiered.open(tmp_path / name, remote=url) as log:
            log.topic("t", create=True).append(name.encode())
            log.sync()
    assert errors(tmp_path / "first", url) == []
    assert errors(tmp_path / "second", url) == []


def test_records_at_offsets_that_another_volume_gave_are_named(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'bucket'}"
    with tiered.open(tmp_path / "first", remote=url) as log:
        log.topic("t", create=True).append(b"first")
        log.sync()
        log.topic("t").append(b"only here")
    with tiered.open(tmp_path / "second", remote=url) as log:
        log.topic("t").append(b"second")
        log.sync()
    assert errors(tmp_path / "first", url) == ["tiers_differ"]
