"""A fenced log starts again at the bucket's end, and what only its disk held can still be read."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tiered.cli.main import run
from tiered.clock import SystemClock
from tiered.errors import ConfigError, FencedError, LockedError, UnknownTopicError
from tiered.model import TopicPartition
from tiered.rejoin import plan_rejoin, rejoin


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
    import tiered.rejoin as module

    plan = plan_rejoin(fenced / "log", clock=SystemClock())
    module._move(plan, module.PosixFiles())  # and then the power goes
    again = plan_rejoin(fenced / "log", clock=SystemClock())
    rejoin(again, clock=SystemClock())
    with tiered.open(fenced / "log", remote=f"file://{fenced / 'store'}") as log:
        assert log.topic("t").append(b"2").offset == 2


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
