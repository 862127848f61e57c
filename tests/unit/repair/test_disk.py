"""A damaged log directory goes on: from the bucket, from its other files, or with a hole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tests.support.admin import apply_repair, check, plan_repair
from tests.support.buckets import SETTINGS, TP, Bucket, bucket, write
from tiered.check.findings import Severity
from tiered.errors import NewerFormatError
from tiered.local.disk.uploader_files import OFFSET_CHECKPOINT_NAME
from tiered.repair.plan import EXIT_LEFT, RepairOptions, RepairPlan
from tiered.store.memory import MemoryStore

Read = list[tuple[int, bytes | None]]
Damage = Callable[[Path], None]
OFFLINE = "memory://nowhere"


def read(directory: Path, url: str = "", isolation: str = "read_committed") -> Read:
    with tiered.open(directory, url) if url else tiered.open(directory) as log:
        return [(seen.offset, seen.value) for seen in log.topic("t").read(isolation=isolation)]  # type: ignore[arg-type]


def repair(directory: Path, url: str | None = None, **options: object) -> RepairPlan:
    plan = plan_repair(url, [], RepairOptions(log_dir=directory, **options))  # type: ignore[arg-type]
    apply_repair(url, plan)
    again = plan_repair(url, [], RepairOptions(log_dir=directory, **options))  # type: ignore[arg-type]
    assert [each.where for each in again.actions] == [each.where for each in plan.left]
    return plan


def errors(directory: Path) -> list[str]:
    return [one.message for one in check(directory, None).findings if one.severity is not Severity.INFO]


def aside(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.parent.glob(f"{directory.name}.aside-*/**/*") if path.is_file())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with transactions in small segments, and no bucket."""
    with bucket("memory", tmp_path) as made:
        write(made)
    for name in (OFFSET_CHECKPOINT_NAME, "tiered-claims.json", "tiered-uploader.journal"):
        (made.directory / name).unlink(missing_ok=True)
    return made.directory


@pytest.fixture
def tiered_log(tmp_path: Path) -> Bucket:
    with bucket("memory", tmp_path) as made:
        write(made)
        yield made


def logs(directory: Path) -> list[Path]:
    return sorted((directory / "t-0").glob("*.log"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def lengthless(path: Path) -> None:
    """No length leads to the second batch any more."""
    data = bytearray(path.read_bytes())
    data[8] ^= 0x40
    path.write_bytes(data)


def lose(path: Path) -> None:
    path.unlink()


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def rebase(path: Path) -> None:
    """The first base offset is outside the CRC of its batch."""
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


def rotten(path: Path) -> None:
    """The base offset of a batch in the middle is far away. It is outside the CRC."""
    data = bytearray(path.read_bytes())
    data[12 + int.from_bytes(data[8:12], "big")] ^= 1
    path.write_bytes(data)


def another_leader(path: Path) -> None:
    """The leader epoch is outside the CRC, too."""
    data = bytearray(path.read_bytes())
    data[15] ^= 1
    path.write_bytes(data)


def end_at_a_batch(path: Path) -> None:
    """The last batches are missing."""
    data = path.read_bytes()
    path.write_bytes(data[: 12 + int.from_bytes(data[8:12], "big")])


DAMAGES = (flip, cut, lengthless, lose, zero, rebase, rotten, another_leader, end_at_a_batch)
every_damage = pytest.mark.parametrize("damage", DAMAGES)


@every_damage
def test_segments_that_the_bucket_holds_are_set_aside(tiered_log: Bucket, damage: Damage) -> None:
    place, url = tiered_log, tiered_log.store.url
    before, files = place.committed(), logs(place.directory)
    damage(files[3])
    assert errors(place.directory)
    refused = plan_repair(None, [], RepairOptions(log_dir=place.directory, accept_loss=True))
    assert refused.exit_code == EXIT_LEFT
    assert f"--log-dir {place.directory} --remote URL`" in refused.left[0].remedy
    plan = repair(place.directory, url)
    assert (plan.exit_code, [each.lost for each in plan.actions]) == (0, [()])
    assert errors(place.directory) == []
    assert logs(place.directory) == files[4:] or damage is lose
    assert read(place.directory, url) == before
    place.continues()


@every_damage
def test_a_hole_takes_the_place_of_what_no_bucket_holds(directory: Path, damage: Damage) -> None:
    before = read(directory, isolation="read_uncommitted")
    path = logs(directory)[3]
    base, end = int(path.stem), int(logs(directory)[4].stem)
    damage(path)
    assert errors(directory)
    refused = plan_repair(None, [TP], RepairOptions(log_dir=directory))
    assert refused.exit_code == EXIT_LEFT
    assert f"--log-dir {directory} --accept-loss`" in refused.left[0].remedy
    plan = repair(directory, accept_loss=True)
    ((start, stop),) = plan.actions[0].lost
    assert base <= start < stop <= end
    assert (stop - start == end - base) is (damage in (lose, zero))
    assert read(directory, isolation="read_uncommitted") == [each for each in before if not start <= each[0] < stop]
    assert errors(directory) == []
    assert (path.name in aside(directory)) is (damage is not lose)
    appended_and_uploaded(directory)


def appended_and_uploaded(directory: Path) -> None:
    with tiered.open(directory, OFFLINE) as log:
        with log.topic("t").transaction("a") as txn:
            txn.append(b"more")
        log.sync(timeout=60)
        with tiered.open_reader(OFFLINE) as reader:
            assert [each.value for each in reader.topic("t").read(isolation="read_committed")][-1] == b"more"
    assert check(directory, OFFLINE).exit_code == 0
    assert read(directory)[-1][1] == b"more"
    MemoryStore.forget("nowhere")


def test_a_transaction_that_is_open_where_the_hole_begins_is_aborted(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with tiered.open(directory) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 300})
        txn = topic.transaction("a")
        txn.append(b"in a transaction" + b"x" * 100)
        for number in range(8):
            topic.append(b"%d" % number + b"x" * 100)
        txn.commit()
        topic.append(b"last" + b"x" * 100)
    flip(logs(directory)[1])
    plan = repair(directory, accept_loss=True)
    assert "from offset 0 on counts as aborted" in plan.actions[0].notes[0]
    ((start, stop),) = plan.actions[0].lost
    values = [value[:4] for _, value in read(directory) if value]
    assert b"in a" not in values
    assert values[-1] == b"last"
    assert len(values) == 9 - (stop - start)
    assert errors(directory) == []


def test_the_topics_get_their_settings_from_the_bucket(tiered_log: Bucket) -> None:
    path = tiered_log.directory / "tiered-topics.json"
    right = path.read_bytes()
    path.write_bytes(b"{")
    repair(tiered_log.directory, tiered_log.store.url)
    assert path.read_bytes() == right
    tiered_log.continues()


def test_the_topics_of_a_log_without_a_bucket_lose_their_settings(directory: Path) -> None:
    before = read(directory)
    (directory / "tiered-topics.json").write_bytes(b"no such file\n\x80")
    plan = repair(directory)
    assert plan.actions[0].notes == ("the settings of t are lost: `tiered topic set t` sets them again",)
    assert aside(directory) == ["tiered-topics.json"]
    assert (read(directory), errors(directory)) == (before, [])


def test_a_newer_release_is_no_damage(directory: Path) -> None:
    (directory / "tiered-topics.json").write_text('{"version": 99}')
    with pytest.raises(NewerFormatError):
        plan_repair(None, [], RepairOptions(log_dir=directory))


def test_open_transactions_are_aborted_without_their_coordinator(tmp_path: Path) -> None:
    directory, copy = tmp_path / "log", tmp_path / "copy"
    with tiered.open(directory) as log, log.topic("t", create=True, config=SETTINGS).transaction("a") as txn:
        txn.append(b"committed")
    log = tiered.open(directory)
    open_one = log.topic("t").transaction("b")
    open_one.append(b"open")
    log.flush()
    shutil.copytree(directory, copy)  # as a crash leaves it
    open_one.abort()
    log.close()
    shutil.rmtree(copy / "__transaction_state-0")
    plan = repair(copy)
    assert "aborts the transactions" in plan.actions[0].remedy
    assert [value for _, value in read(copy)] == [b"committed"]
    assert errors(copy) == []
    with tiered.open(copy) as log, log.topic("t").transaction("b") as txn:
        txn.append(b"more")
    assert [value for _, value in read(copy)] == [b"committed", b"more"]


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("damage", [flip, cut, zero])
def test_damage_of_the_last_segment(directory: Path, damage: Damage, *, crashed: bool) -> None:
    """After a crash the next open judges it."""
    with tiered.open(directory) as log:
        for _ in range(3):
            log.topic("t").append(b"at the end" * 5)
    before = read(directory, isolation="read_uncommitted")
    damage(logs(directory)[-1])
    if crashed:
        (directory / ".kafka_cleanshutdown").unlink()
        for action in plan_repair(None, [TP], RepairOptions(log_dir=directory, accept_loss=True)).left:
            assert "open the log for writing" in action.remedy
        tiered.open(directory).close()
    plan = repair(directory, accept_loss=True)
    ((start, stop),) = plan.actions[0].lost
    with tiered.open(directory) as log:
        assert log.topic("t").append(b"after").offset == before[-1][0] + 1
    after = read(directory, isolation="read_uncommitted")
    assert after[:-1] == [each for each in before if not start <= each[0] < stop]
    assert errors(directory) == []
    appended_and_uploaded(directory)


def test_several_damaged_segments(directory: Path) -> None:
    before, files = read(directory, isolation="read_uncommitted"), logs(directory)
    for path in (files[1], files[2], files[5]):
        flip(path)
    plan = repair(directory, accept_loss=True)
    lost = {offset for action in plan.actions for start, end in action.lost for offset in range(start, end)}
    assert len(plan.actions) == 3
    assert read(directory, isolation="read_uncommitted") == [each for each in before if each[0] not in lost]
    assert errors(directory) == []
    appended_and_uploaded(directory)
