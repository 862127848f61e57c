"""Links that were removed by hand: the loss is reported with its remedy, and never passed over."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import sealed_in
from tests.unit.sidecar.broker import Broker, mirror_of, read, sidecar, values
from tiered.clock import SystemClock, SystemIds
from tiered.errors import CorruptionError, NewerFormatError
from tiered.format.local_names import log_name
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.partition_files import log_bases
from tiered.model import TopicPartition
from tiered.sidecar.directory import BrokerDirectory
from tiered.sidecar.links import BEGUN_NAME, LINKS_NAME, LinkFolder, Lost, decode, encode
from tiered.sidecar.mirror import beside

T = TopicPartition("t", 0)


def folder_of(broker: Broker) -> Path:
    return beside(broker.path) / "t-0"


def noted(broker: Broker) -> list[int]:
    return list(LinkFolder(T, broker.path, beside(broker.path), PosixFiles()).noted())


def linked(broker: Broker, sealed: int, **more: Any) -> int:
    """The first segment is in the bucket, those before ``sealed`` are linked and not. Returns their end."""
    end = broker.roll(sealed)
    mirror_of(broker, **more).scan()
    assert log_bases(PosixFiles(), folder_of(broker)) == noted(broker)
    return end


def below(finished: Path, end: int) -> dict[int, bytes | None]:
    return {at: value for at, value in values(finished, "t").items() if at < end}


@pytest.fixture(params=[True, False], ids=["begun", "fresh"])
def begun(request: pytest.FixtureRequest, broker: Broker, url: str) -> bool:
    """Whether the bucket has the first segment before anything is lost."""
    if request.param:
        broker.roll(1)
        assert sidecar(broker.path, url).code == 0
    return bool(request.param)


def test_a_lost_link_is_made_again_in_a_new_folder(broker: Broker, finished: Path, url: str, begun: bool) -> None:
    end = linked(broker, 5)
    (folder_of(broker) / log_name(broker.bases[2])).unlink()
    ending = sidecar(broker.path, url)
    remedy = f"stop this and remove {folder_of(broker)}: links are made again"
    assert (ending.code, remedy in ending.hint) == (14, True), ending
    assert read(url, "t") == below(finished, broker.bases[2])
    shutil.rmtree(folder_of(broker))
    before = broker.contents()
    ending = sidecar(broker.path, url)
    assert (ending.code, broker.contents()) == (0, before), ending
    assert read(url, "t") == below(finished, end)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_link_ends_the_uploads_there(broker: Broker, finished: Path, url: str, lost: int, begun: bool) -> None:
    """The segment before it reached over the hole, and its records were missing in the bucket without a word."""
    linked(broker, 4)
    broker.retain(4)
    base, after = broker.bases[lost : lost + 2]
    path = folder_of(broker) / log_name(base)
    path.rename(path.with_name("kept"))
    for more in (4, 5):
        broker.roll(more)
        for _ in range(2):
            ending = sidecar(broker.path, url)
            told = f"t-0: {path} is gone: it linked offsets {base} to {after} of the broker's log"
            assert (ending.code, told in str(ending), "put that file back" in ending.hint) == (14, True, True), ending
            assert read(url, "t") == below(finished, base)
    assert log_bases(PosixFiles(), folder_of(broker))[-1] == broker.bases[5]  # what comes is linked all the same
    path.with_name("kept").rename(path)
    ending = sidecar(broker.path, url)
    assert ending.code == 0, ending
    assert read(url, "t") == below(finished, broker.bases[5])


def test_the_end_of_the_last_link_is_noted(broker: Broker, finished: Path, url: str, begun: bool) -> None:
    """Without its empty file the last link, which the broker has no more, was a segment that is still written."""
    end = linked(broker, 4)
    broker.retain(4)
    (folder_of(broker) / log_name(end)).unlink()
    ending = sidecar(broker.path, url)
    assert ending.code == 0, ending
    assert read(url, "t") == below(finished, end)


@pytest.mark.parametrize("gone", [False, True])
def test_the_newest_links_are_missed_with_their_end(
    broker: Broker, finished: Path, url: str, begun: bool, gone: bool
) -> None:
    """Their first one was taken for the end; and where the broker has nothing more of it, for all that there was."""
    linked(broker, 5)
    lost = [folder_of(broker) / log_name(broker.bases[number]) for number in (3, 4, 5)]
    for path in lost:
        path.rename(path.with_suffix(".kept"))
    if gone:
        broker.folder.rename(broker.path / f"t-0.{'0' * 32}-delete")
    else:
        broker.retain(5)
    for _ in range(2):
        ending = sidecar(broker.path, url)
        told = f"t-0: {lost[0]} is gone: it linked offsets {broker.bases[3]} to {broker.bases[4]}"
        assert (ending.code, told in str(ending)) == (14, True), ending
        assert read(url, "t") == below(finished, broker.bases[3])
    for path in lost[:2]:
        path.with_suffix(".kept").rename(path)
    ending = sidecar(broker.path, url)
    assert ending.code == 0, ending
    assert read(url, "t") == below(finished, broker.bases[5])


def test_what_was_let_go_on_purpose_is_not_missing(broker: Broker, finished: Path, url: str) -> None:
    """Neither by the bucket's end, nor once it is not known any more: the note is narrowed before a link goes."""
    for sealed in range(1, 6):
        end = broker.roll(sealed)
        broker.retain(sealed - 1)
        ending = sidecar(broker.path, url)
        assert ending.code == 0, ending
        mirror = mirror_of(broker)
        mirror.scan()
        assert (noted(broker), mirror.broken) == (broker.bases[sealed - 1 : sealed + 1], {})
    (beside(broker.path) / "tiered-offset-checkpoint").unlink()
    assert sidecar(broker.path, url).code == 0
    assert read(url, "t") == below(finished, end)


def test_a_link_to_what_the_bucket_has_is_not_missed(broker: Broker, finished: Path, url: str) -> None:
    broker.roll(3)
    assert sidecar(broker.path, url).code == 0
    end = broker.roll(5)
    broker.retain(3)
    (folder_of(broker) / log_name(broker.bases[2])).unlink()
    ending = sidecar(broker.path, url)
    assert ending.code == 0, ending
    assert read(url, "t") == below(finished, end)


def test_a_running_uploader_sees_a_loss_and_its_end(broker: Broker) -> None:
    directory = BrokerDirectory(broker.path, beside(broker.path), clock=SystemClock(), ids=SystemIds())
    broker.roll(4)
    directory.acquire()

    def seen() -> tuple[bool, list[tuple[int, int]]]:
        look = directory.scan()
        return T in directory.unreadable(), [(each.base, each.end) for each in sealed_in(look)]

    pairs = list(itertools.pairwise(broker.bases[:5]))
    assert seen() == (False, pairs)
    lost = folder_of(broker) / log_name(broker.bases[2])
    lost.rename(lost.with_name("kept"))
    assert seen() == (True, [])
    lost.with_name("kept").rename(lost)
    assert seen() == (False, [pairs[2]])
    directory.release()


def test_a_note_that_is_missing_is_written_at_the_next_look(broker: Broker, url: str) -> None:
    linked(broker, 4)
    (folder_of(broker) / LINKS_NAME).unlink()
    mirror_of(broker).scan()
    assert noted(broker) == broker.bases[:5]
    (folder_of(broker) / log_name(broker.bases[1])).unlink()
    assert sidecar(broker.path, url).code == 14


def test_a_note_that_cannot_be_read_is_never_none(broker: Broker, finished: Path, url: str) -> None:
    broker.roll(1)
    assert sidecar(broker.path, url).code == 0
    end = linked(broker, 4)
    note = folder_of(broker) / LINKS_NAME
    for wrong, code, told in ((b"0\n3\n0\n", 13, "cannot be read"), (b"7\n0\n", 2, "written by a newer release")):
        note.write_bytes(wrong)
        ending = sidecar(broker.path, url)
        assert (ending.code, f"{note} {told}" in str(ending) or told in str(ending)) == (code, True), ending
        assert read(url, "t") == below(finished, broker.bases[1])
    note.unlink()
    assert sidecar(broker.path, url).code == 0
    assert read(url, "t") == below(finished, end)


def test_a_claim_narrows_the_note(broker: Broker, finished: Path, url: str) -> None:
    """Links below the bucket's end go on purpose: a private directory that was made anew beside a bucket."""
    broker.roll(3)
    assert sidecar(broker.path, url).code == 0
    shutil.rmtree(beside(broker.path))
    end = broker.roll(5)
    assert sidecar(broker.path, url).code == 0
    assert noted(broker)[0] == broker.bases[3]
    assert (folder_of(broker) / BEGUN_NAME).exists()
    assert sidecar(broker.path, url).code == 0
    assert read(url, "t") == below(finished, end)


def test_the_note(tmp_path: Path) -> None:
    def made() -> LinkFolder:
        return LinkFolder(T, tmp_path / "broker", tmp_path, PosixFiles())

    folder = made()
    folder.ours.mkdir()
    assert folder.noted() == ()
    folder.note([0, 5, 9])
    assert (folder.ours / LINKS_NAME).read_bytes() == encode([0, 5, 9]) == b"0\n3\n0\n5\n9\n"
    assert made().noted() == (0, 5, 9)
    assert folder.offsets([0, 9]) == [0, 5, 9]
    assert folder.offsets([0, 7]) == [0, 5, 7]
    assert folder.lost([0, 9, 12], -1) == [Lost(5, 9)]
    assert folder.lost([0, 9, 12], 8) == [Lost(5, 9)]
    assert folder.lost([0, 9, 12], 9) == []
    assert folder.lost([5, 9], 0) == [Lost(0, 5)]
    assert folder.lost([], -1) == []
    for wrong in (b"", b"0\n", b"0\n1\n", b"0\n2\n5\n0\n", b"0\n1\n-5\n", b"0\n1\nx\n", b"\xff"):
        with pytest.raises(CorruptionError):
            decode(wrong)
    with pytest.raises(NewerFormatError):
        decode(b"1\n0\n")
