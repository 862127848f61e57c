"""A topic whose uploads are paused: nothing of it begins, nothing of it is lost, and the rest goes on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.engine.desk import Call, Desk, segment, topic_id, tp
from tests.unit.engine.world import World
from tiered.clock import SystemClock
from tiered.engine.drain import DrainMode
from tiered.engine.partition import EngineLimits
from tiered.engine.reports import StepKind
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PAUSE_NAME, PauseFile
from tiered.plan.pacing import ALL_TOPICS, Pause

PAUSE = Pause(5, "the bucket moves")


def test_no_upload_begins_and_what_is_stored_is_committed() -> None:
    desk = Desk(limits=EngineLimits(uploads=1)).claimed()
    (first,) = desk.seal(0, 10)
    desk.pause({"t": PAUSE})
    desk.store(first, later_ms=1_000)
    desk.commit(desk.commits[0])
    assert desk.uploads == []
    desk.do(desk.engine.scan_now, later_ms=3_600_000)
    assert desk.uploads == []
    view = desk.view()
    assert view.paused
    assert view.waiting is not None
    assert (view.waiting.code, view.waiting.reason) == ("paused", "uploads are paused (the bucket moves)")
    assert "tiered-uploader resume" in view.waiting.unblocks
    desk.pause({})
    assert [upload.segment.base for upload in desk.uploads] == [10]


def test_other_topics_go_on() -> None:
    desk = Desk().claimed()
    desk.pause({"t": PAUSE})
    desk.see(0, "u", topic_id=topic_id(2))
    desk.answer(desk.of(StepKind.REGISTER)[0])
    desk.grant(desk.claims[0], 1)
    assert desk.seal(0) == []
    desk.add(tp(0, "u"), segment(0))
    assert [upload.topic for upload in desk.uploads] == ["u"]


def test_a_pause_of_all_holds_for_partitions_that_come_later_and_they_are_claimed() -> None:
    """A new log could not begin without its claim."""
    desk = Desk()
    desk.pause({ALL_TOPICS: PAUSE})
    desk.claimed()
    assert desk.seal(0) == []
    assert desk.view().phase == "claimed"


def test_a_topic_stays_paused_by_itself_when_all_are_resumed() -> None:
    desk = Desk().claimed()
    desk.pause({ALL_TOPICS: PAUSE, "t": PAUSE})
    desk.seal(0)
    desk.reports.clear()
    desk.pause({"t": PAUSE})
    assert desk.uploads == []
    assert desk.events() == ["resumed_uploads"]


class Waits(SystemClock):
    """Says that it sleeps."""

    def __init__(self, said: threading.Event) -> None:
        self._said = said

    def sleep(self, seconds: float) -> None:
        self._said.set()
        super().sleep(seconds)


def test_of_two_that_pause_at_once_none_is_lost(tmp_path: Path) -> None:
    """Processes: each reads what stands there, changes one topic and writes it whole."""
    waits_or_is_done = threading.Event()

    def second() -> None:
        PauseFile(tmp_path, PosixFiles()).change(lambda before: {**before, "u": PAUSE}, Waits(waits_or_is_done))
        waits_or_is_done.set()

    thread = threading.Thread(target=second)

    def first(before: Mapping[str, Pause]) -> Mapping[str, Pause]:
        thread.start()
        assert waits_or_is_done.wait(30)
        return {**before, "t": PAUSE}

    pauses = PauseFile(tmp_path, PosixFiles())
    pauses.change(first, SystemClock())
    thread.join()
    assert sorted(pauses.read()) == ["t", "u"]


@pytest.mark.parametrize("oneshot", [True, False])
def test_a_drain_does_not_wait_for_what_is_paused(oneshot: bool) -> None:
    desk = Desk().claimed(end=10)
    (upload,) = desk.seal(0)
    desk.pause({"t": PAUSE})
    desk.seal(10)
    desk.drain(DrainMode.SEALED, oneshot=oneshot)
    assert desk.exit is None  # what is under way is waited for
    desk.store(upload, later_ms=1_000)
    desk.commit(desk.commits[0])
    assert desk.exit is not None
    assert desk.exit.code == 75
    assert "t-0 from offset 10 is only on this disk: t-0: uploads are paused (the bucket moves)" in desk.exit.reason


def test_a_drain_of_a_paused_topic_that_is_committed_ends_well() -> None:
    desk = Desk().claimed(next_offset=10, end=10)
    desk.pause({"t": PAUSE})
    desk.drain(DrainMode.SEALED)
    assert desk.exit is not None
    assert desk.exit.code == 0


class Pausing(World):
    """Somebody pauses and resumes while everything else happens, too."""

    paused = False

    def begun(self, call: Call) -> None:
        assert not (self.paused and call.kind is StepKind.UPLOAD), "an upload of a paused topic"
        super().begun(call)

    def step(self) -> None:
        if self.rng.random() < 0.05:
            self.paused = not self.paused
            self.pause({"t": PAUSE} if self.paused else {})
        super().step()


@pytest.mark.parametrize("seed", range(40))
def test_pauses_at_any_moment_lose_nothing(seed: int) -> None:
    world = Pausing(seed, partitions=1 + seed % 4, limits=EngineLimits(uploads=1 + seed % 4))
    for _ in range(150):
        world.step()
    world.paused = False
    world.pause({})
    world.settle()
    for at, truth in world.truths.items():
        assert truth.next_offset == (world.disk[at][-1].end if world.disk[at] else 0), f"seed {seed}: {at}"
        assert world.noted_ends.get(at, 0) == truth.next_offset


def test_the_file_says_what_was_written_and_pauses_all_where_it_cannot_be_read(tmp_path: Path) -> None:
    pauses = PauseFile(tmp_path, PosixFiles())
    assert pauses.read() == {}
    pauses.write({"t": PAUSE, ALL_TOPICS: Pause(7)})
    assert PauseFile(tmp_path, PosixFiles()).read() == {"t": PAUSE, ALL_TOPICS: Pause(7)}
    for damage in (b"", b"{", b'{"version":1}', b'{"version":1,"topics":3}', b'{"version":1,"topics":{"t":{}}}', b"[]"):
        (tmp_path / PAUSE_NAME).write_bytes(damage)
        assert list(PauseFile(tmp_path, PosixFiles()).read()) == [ALL_TOPICS]
    pauses.write({})
    assert PauseFile(tmp_path, PosixFiles()).read() == {}
