"""A fenced log starts again at the bucket's end, and what only its disk held can still be read."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

import tiered
from tests.support.admin import plan_rejoin, rejoin
from tiered.cli.main import run
from tiered.clock import SystemClock
from tiered.errors import ConfigError, FencedError, LocalIOError, LockedError, UnknownTopicError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles, translate
from tiered.model import TopicPartition


@pytest.fixture
def fenced(tmp_path: Path) -> Path:
    """A log whose partition another volume has taken over; it holds one record that the bucket does not."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        log.topic("t", create=True).append(b"0")
        log.sync(timeout=30)
    with tiered.open(tmp_path / "other", remote=url) as log:
        log.topic("t").append(b"1")
        log.sync(timeout=30)
    with tiered.open(tmp_path / "log", remote=url) as log:
        log.topic("t").append(b"only here")
        with pytest.raises(FencedError, match="t-0"):
            log.sync(timeout=30)
    return tmp_path


def test_it_resumes_and_loses_nothing(fenced: Path) -> None:
    plan = plan_rejoin(fenced / "log", clock=SystemClock())
    assert [(a.tp, a.committed_end, a.end_offset) for a in plan.partitions] == [(TopicPartition("t", 0), 1, 2)]
    rejoin(plan, clock=SystemClock())
    with tiered.open(fenced / "log", remote=f"file://{fenced / 'store'}") as log:
        topic = log.topic("t")
        assert topic.append(b"2").offset == 2
        log.sync(timeout=30)
        assert [r.value for r in topic.read()] == [b"0", b"1", b"2"]
    with tiered.open_reader(log_dir=plan.target) as reader:
        assert [r.value for r in reader.topic("t").read()] == [b"0", b"only here"]
    with tiered.open(fenced / "other", remote=f"file://{fenced / 'store'}") as log:
        log.topic("t").append(b"mine")
        with pytest.raises(FencedError, match="t-0"):
            log.sync(timeout=30)


def test_a_crash_between_the_two_steps_is_finished_by_the_next_run(fenced: Path) -> None:
    import tiered.repair.log_directory as module

    plan = plan_rejoin(fenced / "log", clock=SystemClock())
    module._move(plan, PosixFiles())  # and then the power goes
    again = plan_rejoin(fenced / "log", clock=SystemClock())
    rejoin(again, clock=SystemClock())
    with tiered.open(fenced / "log", remote=f"file://{fenced / 'store'}") as log:
        assert log.topic("t").append(b"2").offset == 2


class Mounted(PosixFiles):
    """No rename of a directory leads out of it."""

    def rename(self, source: Path, target: Path) -> None:
        if self.is_directory(source):
            raise translate(OSError(errno.EXDEV, "Invalid cross-device link"), "rename", source)
        super().rename(source, target)


def test_a_log_directory_that_is_a_mount_point_is_set_aside_as_is_said(
    fenced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_rejoin(fenced / "log", clock=SystemClock())
    with pytest.raises(LocalIOError, match="cannot rename") as refused:
        rejoin(plan, clock=SystemClock(), files=Mounted())
    move, _, again, *_ = refused.value.hint.split("`")[1:]
    assert move == f"mv {fenced / 'log' / 't-0'} {plan.target}"
    source, target = move.split()[1:]
    shutil.move(source, target)
    assert run([*again.split()[1:], "--yes"]) == 0, capsys.readouterr().err
    with tiered.open(fenced / "log", remote=f"file://{fenced / 'store'}") as log:
        assert log.topic("t").append(b"2").offset == 2
    with tiered.open_reader(log_dir=plan.target) as reader:
        assert [r.value for r in reader.topic("t").read()] == [b"0", b"only here"]


def test_refusals(fenced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"no partition .* is fenced"):
        plan_rejoin(fenced / "other", clock=SystemClock())
    with pytest.raises(UnknownTopicError, match="x-3"):
        plan_rejoin(fenced / "log", [TopicPartition("x", 3)], clock=SystemClock())
    plan = plan_rejoin(fenced / "log", clock=SystemClock())
    with tiered.open(fenced / "log"), pytest.raises(LockedError):
        rejoin(plan, clock=SystemClock())
    assert run(["repair", "rejoin", "--log-dir", str(fenced / "log")]) == 2
    assert "--yes" in capsys.readouterr().err
    assert run(["repair", "rejoin", "--log-dir", str(fenced / "log"), "--dry-run"]) == 0
    assert "would be set aside" in capsys.readouterr().out
    assert run(["repair", "rejoin", "--log-dir", str(fenced / "log"), "--yes", "--json"]) == 0
    assert '"dry_run": false' in capsys.readouterr().out.replace('"dry_run":false', '"dry_run": false')


def cut_below(tmp_path: Path, at: int) -> str:
    """A log of 10 uploaded records whose disk was then cut at ``at``."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 1000})
        for i in range(10):
            topic.append(b"old%d" % i + b"." * 100)
        log.sync(timeout=30)
    with LocalLog.open(tmp_path / "log") as local:
        partition = local.partition(TopicPartition("t", 0))
        partition.context.upload = None  # a cut below what the bucket holds is refused otherwise
        partition.truncate_to(at)
    return url


@pytest.mark.parametrize("at", [1, 5, 9])
def test_offsets_that_the_bucket_has_given_are_not_given_again(tmp_path: Path, at: int) -> None:
    url = cut_below(tmp_path, at)
    for remote in (url, None, url):  # the mark lasts over restarts, with the bucket and without
        with tiered.open(tmp_path / "log", remote=remote) as log:
            topic = log.topic("t")
            with pytest.raises(FencedError, match=f"ends at offset {at} on this disk.* at 10 in the bucket") as caught:
                topic.append(b"new", durability="disk")
            assert "tiered repair rejoin t:0" in caught.value.hint
            with pytest.raises(FencedError):
                topic.append_many([b"new"])
            with pytest.raises(FencedError), topic.transaction("id") as txn:
                txn.append(b"new")
            assert topic.positions(0).end_offset == at
    plan = plan_rejoin(tmp_path / "log", clock=SystemClock())
    assert [(a.tp, a.committed_end, a.end_offset) for a in plan.partitions] == [(TopicPartition("t", 0), 10, at)]
    rejoin(plan, clock=SystemClock())
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t")
        assert topic.append(b"new").offset == 10
        log.sync(timeout=30)
        assert [r.value[:4] for r in topic.read()] == [b"old%d" % i for i in range(10)] + [b"new"]


def test_a_log_that_was_emptied_resumes_where_the_bucket_ends(tmp_path: Path) -> None:
    url = cut_below(tmp_path, 0)
    with tiered.open(tmp_path / "log") as log, pytest.raises(FencedError):  # without the bucket it stays refused
        log.topic("t").append(b"new")
    with tiered.open(tmp_path / "log", remote=url) as log:
        assert log.topic("t").append(b"new").offset == 10
