"""One engine, however it is run: the same cases through ``log.sync()``, the component, the daemon and the command."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.integration.uploader.logs import T0, T1, judge, keys_of, make_log, read_root, rows_of
from tests.unit.engine.drivers import DRIVERS, Death, put_of, raw_store
from tiered.engine import failure
from tiered.engine.journal import Journal
from tiered.engine.sync_run import LIMITS
from tiered.errors import DataLocalError, TieredError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PauseFile
from tiered.model import Row
from tiered.plan import commit
from tiered.plan.pacing import ALL_TOPICS, Pause
from tiered.store.base import StoreRequest

SEGMENTS = 4


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    make_log(tmp_path / "disk", records=90)
    return tmp_path / "disk"


def bucket_of(path: Path) -> str:
    return f"drivers-{'-'.join(path.parts[-3:])}"


def left_over(bucket: str) -> int:
    """Objects of segments in the bucket."""
    return sum("/s/" in key for key in keys_of(raw_store(bucket)))


def test_all_of_a_log_is_uploaded_once(driver: str, disk: Path) -> None:
    bucket = bucket_of(disk)
    DRIVERS[driver].run(disk, bucket)
    assert judge(f"memory://{bucket}", disk, [T0, T1]) == SEGMENTS
    DRIVERS[driver].run(disk, bucket)
    assert judge(f"memory://{bucket}", disk, [T0, T1]) == SEGMENTS


@pytest.mark.parametrize(("killed", "mended"), list(itertools.product(DRIVERS, DRIVERS)))
def test_an_upload_killed_between_its_two_objects_leaves_nothing(
    killed: str, mended: str, disk: Path, tmp_path: Path
) -> None:
    """Whoever died, and whoever comes next."""
    bucket, image = bucket_of(disk), tmp_path / "image"
    DRIVERS[killed].die(disk, Death(raw_store(bucket), disk, image, put_of(".idx"), after=False))
    before = left_over(bucket)
    assert before >= 1
    DRIVERS[mended].run(image, bucket)
    assert judge(f"memory://{bucket}", image, [T0, T1]) == SEGMENTS
    assert left_over(bucket) == 2 * SEGMENTS


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("object_", [".log", ".idx", "/root"])
def test_a_kill_at_an_object_is_mended_by_the_next_run(
    driver: str, object_: str, after: bool, disk: Path, tmp_path: Path
) -> None:
    bucket, image = bucket_of(disk), tmp_path / "image"
    DRIVERS[driver].die(disk, Death(raw_store(bucket), disk, image, put_of(object_), after=after))
    DRIVERS[driver].run(image, bucket)
    assert judge(f"memory://{bucket}", image, [T0, T1]) == SEGMENTS


def test_every_upload_is_written_down_before_its_first_byte(driver: str, disk: Path, tmp_path: Path) -> None:
    bucket, image = bucket_of(disk), tmp_path / "image"
    store = raw_store(bucket)
    DRIVERS[driver].die(disk, Death(store, disk, image, put_of(".log"), after=False))
    assert left_over(bucket) == 0
    journal = Journal(image, PosixFiles())
    named = [entry for tp in (T0, T1) for entry in journal.before(tp, 1 << 31)]
    journal.close()
    assert len(named) >= 1
    assert {entry.epoch for entry in named} == {1}


def test_what_is_committed_is_no_longer_written_down(driver: str, disk: Path) -> None:
    DRIVERS[driver].run(disk, bucket_of(disk))
    journal = Journal(disk, PosixFiles())
    assert [entry for tp in (T0, T1) for entry in journal.before(tp, 1 << 31)] == []
    journal.close()


@pytest.mark.parametrize("topic", ["t", ALL_TOPICS])
def test_nothing_of_a_paused_topic_is_sent_until_it_is_resumed(driver: str, topic: str, disk: Path) -> None:
    """Whoever runs the engine; it says so at once instead of waiting, and a new process heeds it, too."""
    bucket, pauses = bucket_of(disk), PauseFile(disk, PosixFiles())
    pauses.write({topic: Pause(1, "the bucket moves")})
    for _ in range(2):
        with pytest.raises((DataLocalError, AssertionError)) as raised:
            DRIVERS[driver].run(disk, bucket)
        if driver in ("log.sync()", "component"):
            assert raised.type is DataLocalError
            assert "uploads are paused (the bucket moves)" in str(raised.value)
            assert "tiered-uploader resume" in str(raised.value)
    assert left_over(bucket) == 0
    pauses.write({})
    DRIVERS[driver].run(disk, bucket)
    assert judge(f"memory://{bucket}", disk, [T0, T1]) == SEGMENTS


def test_a_pause_is_heard_by_a_sync_under_way(tmp_path: Path) -> None:
    """Uploads that had begun are finished and committed, no other of the topic begins, and a report says why."""
    disk = tmp_path / "disk"
    make_log(disk, records=600)
    bucket, pauses = bucket_of(disk), PauseFile(disk, PosixFiles())

    def somebody_pauses(request: StoreRequest) -> bool:
        if put_of(".log")(request):
            pauses.write({"t": Pause(1, "the bucket moves")})
        return False

    death = Death(raw_store(bucket), disk, tmp_path / "image", somebody_pauses, after=False)
    with pytest.raises(DataLocalError, match=r"uploads are paused \(the bucket moves\)"):
        DRIVERS["log.sync()"].die(disk, death)
    assert left_over(bucket) == 2 * LIMITS.uploads
    rows = [row for tp in (T0, T1) for row in rows_of(raw_store(bucket), disk, tp)]
    assert len(rows) == LIMITS.uploads
    pauses.write({})
    DRIVERS["log.sync()"].run(disk, bucket)
    assert judge(f"memory://{bucket}", disk, [T0, T1]) > 10


@pytest.mark.parametrize("name", ["log.sync()", "run", "sync --wait"])
def test_a_refused_commit_ends_after_few_versions(name: str, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claiming again does not mend it. (Of the component its application waits as long as it wants to.)"""
    bucket, true_flaw = bucket_of(disk), commit.row_flaw
    bases = [int(path.stem) for path in sorted((disk / "t-0").glob("*.log"))]

    def refuse(row: Row, expected: int, stamp: commit.Stamp) -> str:
        return true_flaw(row, expected, stamp) or ("size 0" if row.base == bases[1] else "")

    monkeypatch.setattr(commit, "row_flaw", refuse)
    monkeypatch.setattr(failure, "_FATAL_BASE_MS", 1)
    with pytest.raises((TieredError, AssertionError), match=None if name == "run" else "size 0"):
        DRIVERS[name].run(disk, bucket)
    roots = [read_root(raw_store(bucket), disk, tp) for tp in (T0, T1)]
    ends = [-1 if root is None else root.next_offset for root in roots]
    assert ends == [0 if name == "log.sync()" else bases[1]] * 2  # a sync of a log ends with its first refusal
    assert [root.version < 20 for root in roots if root is not None] == [True, True]
