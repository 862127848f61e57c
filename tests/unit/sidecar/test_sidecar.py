"""The uploader beside a broker that rolls, deletes, truncates and compacts: what it sealed safely is in the bucket."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import tiered
from tests.support.engine import sealed_in
from tests.support.given import append_given
from tests.unit.sidecar.broker import Broker, batch_starts, finished_log, mirror_of, read, sidecar, values
from tests.unit.sidecar.killing import killed_at_each_effect
from tiered.check.findings import Severity
from tiered.clock import SystemClock, SystemIds
from tiered.engine.scanner import Look
from tiered.errors import (
    ConfigError,
    DataLocalError,
    LockedError,
    LogDestroyedError,
    NotFoundError,
    OffsetGapError,
    TieredError,
)
from tiered.format.checkpoint import encode_offsets
from tiered.format.keys import topic_key
from tiered.format.local_names import log_name
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.claims import CLAIMS_NAME, Claims
from tiered.local.disk.directory_files import CLEANER_NAME, LOG_START_NAME, RECOVERY_POINT_NAME, REPLICATION_NAME
from tiered.local.disk.files import FileState, PosixFiles, translate
from tiered.local.disk.partition_files import log_bases
from tiered.local.segment.scan import LogFile
from tiered.model import TopicPartition
from tiered.sidecar.directory import BrokerDirectory
from tiered.sidecar.links import BEGUN_NAME, LINKING_NAME
from tiered.sidecar.mirror import HELD_BYTES, INTERNAL, Mirror, beside
from tiered.store.base import Delete
from tiered.store.location import StoreLocation
from uploader.config import Settings, resolve

T = TopicPartition("t", 0)
ISOLATIONS = ("read_uncommitted", "read_committed")


def judge(url: str, finished: Path, end: int) -> None:
    """The bucket holds exactly what the broker's log has below ``end``, at both isolation levels."""
    for isolation in ISOLATIONS:
        expected = {at: value for at, value in values(finished, "t", isolation=isolation).items() if at < end}
        assert read(url, "t", isolation=isolation) == expected, isolation


def upload_one_and_link_four(broker: Broker, url: str) -> None:
    """Upload the first segment of the broker's first leader, then link those up to the fourth."""
    broker.lead({0: 0})
    broker.roll(1)
    assert sidecar(broker.path, url).code == 0
    broker.roll(4)
    mirror_of(broker).scan()


def links(broker: Broker) -> list[int]:
    return log_bases(PosixFiles(), beside(broker.path) / "t-0")


def test_sealed_segments_are_uploaded_and_the_broker_is_left_as_it_was(
    broker: Broker, finished: Path, url: str
) -> None:
    for sealed in range(1, len(broker.bases)):
        end = broker.roll(sealed)
        before = broker.contents()
        assert sidecar(broker.path, url).code == 0
        assert broker.contents() == before
        judge(url, finished, end)
        mirror_of(broker).scan()
        assert links(broker) == [broker.bases[sealed - 1], end]  # the newest committed one stays, as a proof


def test_what_is_linked_outlives_the_brokers_retention(broker: Broker, finished: Path, url: str) -> None:
    end = broker.roll(3)
    mirror_of(broker).scan()
    broker.retain(3)
    assert links(broker) == broker.bases[:4]
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def test_a_file_that_is_renamed_before_it_is_linked_is_found_under_its_other_name(
    broker: Broker, finished: Path, url: str
) -> None:
    class Late(PosixFiles):
        def link(self, source: Path, target: Path) -> None:
            if source.name == log_name(broker.bases[1]):
                broker.retain(2, at_once=False)
            super().link(source, target)

    end = broker.roll(3)
    mirror_of(broker, Late()).scan()
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def test_only_what_is_safe_on_the_broker_is_taken(broker: Broker, finished: Path, url: str) -> None:
    broker.roll(4, mark=False)
    one, two, three = broker.bases[1:4]
    for marks, points, expected in ((two, one, one), (one, three, one), (two + 1, three, two), (three, three - 1, two)):
        broker.mark({T: marks}, {T: points})
        assert sidecar(broker.path, url).code == 0
        assert links(broker)[-1] == expected
        judge(url, finished, expected)


class Racing(PosixFiles):
    """Does ``then`` once, after somebody asked for the state of ``path``."""

    def __init__(self, path: Path, then: Callable[[], None]) -> None:
        super().__init__()
        self._path, self._then = path, [then]

    def state(self, path: Path) -> FileState | None:
        found = super().state(path)
        if path == self._path and self._then:
            self._then.pop()()
        return found


def test_a_segment_that_goes_while_the_broker_is_looked_at_is_not_an_empty_one(
    broker: Broker, finished: Path, url: str
) -> None:
    """The broker renames all that its retention takes in one pass, between two files that the sidecar looks at."""
    end = broker.roll(5)
    racing = Racing(broker.folder / log_name(broker.bases[0]), lambda: broker.retain(3, at_once=False))
    mirror_of(broker, racing).scan()
    assert links(broker) == broker.bases[:6]
    sidecar(broker.path, url)
    judge(url, finished, end)


@pytest.mark.parametrize("left", [0, 1])
def test_a_segment_that_is_rewritten_while_it_is_looked_at_is_not_linked_for_more_than_it_holds(
    broker: Broker, left: int
) -> None:
    broker.roll(3)
    second = broker.folder / log_name(broker.bases[1])
    with LogFile(PosixFiles(), second) as log:
        kept = [span.position for span, _ in log.batches(0, log.size())][left]

    def rewrite() -> None:
        data = second.read_bytes()
        second.unlink()
        second.write_bytes(data[:kept])

    mirror = mirror_of(broker, Racing(second, rewrite))
    mirror.scan()
    assert isinstance(mirror.broken[T], OffsetGapError)
    assert links(broker) == broker.bases[:2]


def test_a_tail_that_is_cut_above_the_high_watermark_was_never_taken(
    broker: Broker, finished: Path, url: str, tmp_path: Path
) -> None:
    """A leader that was not in sync is followed: segment 2 is cut, and written again with other records."""
    broker.roll(3, mark=False)
    broker.mark({T: broker.bases[2]})
    assert sidecar(broker.path, url).code == 0
    with (broker.folder / log_name(broker.bases[2])).open("r+b") as log:
        log.truncate(0)
    (broker.folder / log_name(broker.bases[3])).unlink()
    broker.written = 2
    end = broker.roll(4)
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def mixed(finished: Path, other: Path, cut: int, end: int) -> dict[int, bytes | None]:
    """Values below ``end``: from ``cut`` on the other leader's."""
    found = {at: value for at, value in values(finished, "t").items() if at < cut}
    return found | {at: value for at, value in values(other, "t").items() if cut <= at < end}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("cut", [1, 3])
def test_another_leaders_records_are_never_put_behind_what_the_bucket_has(
    broker: Broker, finished: Path, other: Path, url: str, cut: int, late: bool
) -> None:
    """``late``: the bucket has more than the checkpoint says; only the next claim tells."""
    broker.lead({0: 0})
    assert log_bases(PosixFiles(), other / "t-0") == broker.bases
    end = broker.roll(4)
    if late:
        mirror_of(broker).scan()
        links_before = beside(broker.path).with_name("links")
        shutil.copytree(beside(broker.path), links_before, copy_function=os.link)
    assert sidecar(broker.path, url).code == 0
    if late:
        claims = (beside(broker.path) / CLAIMS_NAME).read_bytes()
        shutil.rmtree(beside(broker.path))
        links_before.rename(beside(broker.path))
        (beside(broker.path) / CLAIMS_NAME).write_bytes(claims)
        (beside(broker.path) / "t-0" / BEGUN_NAME).touch()
    broker.elect(other, cut, 5)
    for _ in range(2):
        ending = sidecar(broker.path, url)
        told = "the bucket holds records that the broker no longer has" in str(ending)
        assert (ending.code, told) == (14, True), ending
        assert late or links(broker)[-1] == end
        judge(url, finished, end)


@pytest.mark.parametrize("uploaded", [True, False])
def test_a_segment_that_is_cut_at_its_first_offset_is_no_end_of_the_links(
    broker: Broker, finished: Path, other: Path, url: str, uploaded: bool
) -> None:
    """Its link is empty, as the file that tells the end: a look at that moment took it for the end."""
    broker.lead({0: 0})
    broker.roll(1)
    assert sidecar(broker.path, url).code == 0
    end = broker.roll(4)
    if uploaded:
        assert sidecar(broker.path, url).code == 0
    mirror_of(broker).scan()
    broker.elect(other, 3, 5, rewritten=False)
    (broker.folder / log_name(broker.bases[3])).write_bytes(b"")  # in place
    mirror_of(broker).scan()
    assert links(broker)[-1] == (end if uploaded else broker.bases[3])
    rolled = broker.elect(other, 3, 5)
    for _ in range(2):
        ending = sidecar(broker.path, url)
        if uploaded:
            told = "the bucket holds records that the broker no longer has" in str(ending)
            assert (ending.code, told) == (14, True), ending
            judge(url, finished, end)
        else:
            assert ending.code == 0, ending
            assert read(url, "t") == mixed(finished, other, broker.bases[3], rolled)


@pytest.mark.parametrize("cut", [1, 3])
def test_links_that_another_leader_wrote_again_are_made_anew(
    broker: Broker, finished: Path, other: Path, url: str, cut: int
) -> None:
    """A link to the segment that was cut in place shows the new records, those after it the old ones."""
    upload_one_and_link_four(broker, url)
    end = broker.elect(other, cut, 5)
    before = broker.contents()
    assert sidecar(broker.path, url).code == 0
    assert broker.contents() == before
    assert read(url, "t") == mixed(finished, other, broker.bases[cut], end)


def test_a_running_uploader_is_told_anew_what_was_linked_again(broker: Broker, finished: Path, other: Path) -> None:
    broker.lead({0: 0})
    broker.roll(4)
    directory = BrokerDirectory(broker.path, beside(broker.path), clock=SystemClock(), ids=SystemIds())
    directory.acquire()
    told = sealed_in(directory.scan())
    assert [(each.base, each.end) for each in told] == list(itertools.pairwise(broker.bases[:5]))
    broker.elect(other, 2, 5)
    again = directory.scan()
    assert again.gone == [T]
    told = sealed_in(again)
    assert [(each.base, each.end) for each in told] == list(itertools.pairwise(broker.bases[:6]))
    assert directory.scan() == Look()
    directory.release()


@pytest.mark.long
def test_killed_while_links_are_taken_back_it_goes_on(
    broker: Broker, finished: Path, other: Path, url: str, tmp_path: Path
) -> None:
    upload_one_and_link_four(broker, url)
    end = broker.elect(other, 2, 5)
    expected = mixed(finished, other, broker.bases[2], end)
    for _ in killed_at_each_effect(broker, tmp_path, mirror_of):
        assert sidecar(broker.path, url).code == 0
        assert read(url, "t") == expected


def test_while_segments_are_exchanged_nothing_is_linked(broker: Broker, finished: Path, url: str) -> None:
    """The cleaner's segment has its name only after the old one has lost it: a log must not begin behind it."""
    end = broker.roll(4)
    first = broker.folder / log_name(0)
    first.rename(first.with_name(f"{first.name}.swap"))
    ending = sidecar(broker.path, url, sidecar_compacted=("t",))
    assert (ending.code, "nothing is linked while the broker replaces segments" in str(ending)) == (75, True), ending
    assert not (beside(broker.path) / "t-0").exists()
    first.with_name(f"{first.name}.swap").rename(first)
    assert sidecar(broker.path, url, sidecar_compacted=("t",)).code == 0
    judge(url, finished, end)


@pytest.mark.parametrize("name", [RECOVERY_POINT_NAME, REPLICATION_NAME, CLEANER_NAME, LOG_START_NAME])
def test_a_checkpoint_that_cannot_be_read_is_never_an_empty_one(
    broker: Broker, finished: Path, url: str, name: str
) -> None:
    """Without it a compacted topic would be one that is not; or nothing would be safe, and all be said to be done."""
    end = broker.roll(3)
    broker.clean([])
    broker.delete_records(0)
    right = (broker.path / name).read_bytes()
    (broker.path / name).write_bytes(right.replace(b"0", b"?", 1))
    ending = sidecar(broker.path, url)
    assert (ending.code, f"{name} cannot be read" in str(ending)) == (13, True), ending
    assert not (beside(broker.path) / "t-0").exists()
    (broker.path / name).write_bytes(right)
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def test_a_partition_that_does_not_say_of_which_topic_it_is_is_told(broker: Broker, finished: Path, url: str) -> None:
    path = broker.folder / "partition.metadata"
    path.rename(broker.path / "kept")
    end = broker.roll(3)
    for _ in range(2):
        ending = sidecar(broker.path, url)
        assert (ending.code, "has no partition.metadata" in str(ending)) == (2, True), ending
    (broker.path / "kept").rename(path)
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


@pytest.mark.parametrize("name", [RECOVERY_POINT_NAME, REPLICATION_NAME])
def test_what_the_broker_does_not_vouch_for_is_no_success(broker: Broker, finished: Path, url: str, name: str) -> None:
    broker.roll(0)
    (broker.path / name).unlink()
    assert sidecar(broker.path, url).code == 0
    end = broker.roll(2)
    right = (broker.path / name).read_bytes()
    for wrong in (encode_offsets({}).encode(), None):
        (broker.path / name).unlink()
        if wrong is not None:
            (broker.path / name).write_bytes(wrong)
        ending = sidecar(broker.path, url)
        assert (ending.code, "do not both list this partition" in str(ending)) == (75, True), ending
        assert links(broker) == [0]
    (broker.path / name).write_bytes(right)
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def test_a_compacted_topic_is_skipped_until_it_is_asked_for(broker: Broker, finished: Path, url: str) -> None:
    end = broker.roll(3)
    broker.clean([T])
    assert sidecar(broker.path, url).code == 0
    assert not (beside(broker.path) / "t-0").exists()
    assert sidecar(broker.path, url, sidecar_compacted=("t",)).code == 0
    judge(url, finished, end)


def test_a_topic_that_is_compacted_later_is_told_and_not_left_in_silence(
    broker: Broker, finished: Path, url: str
) -> None:
    broker.roll(2)
    assert sidecar(broker.path, url).code == 0
    broker.clean([T])
    end = broker.roll(4)
    mirror = mirror_of(broker)
    mirror.scan()
    assert isinstance(mirror.broken[T], ConfigError)
    assert sidecar(broker.path, url).code != 0
    assert sidecar(broker.path, url, sidecar_compacted=("t",)).code == 0
    judge(url, finished, end)


def replica_of(finished: Path, tmp_path: Path) -> Broker:
    """Another broker's copy of the same records, which rolls at other offsets."""
    path = tmp_path / "finished-2"
    with tiered.open(path) as log, tiered.open_reader(log_dir=finished) as reader:
        log.topic("t", create=True, config={"segment.bytes": 2300, "index.interval.bytes": 200})
        for batch in reader.topic("t").stream(0).batches(0):
            append_given(log._local.partition(T), bytes(batch.data))
    shutil.copy(finished / "t-0" / "partition.metadata", path / "t-0")
    return Broker(path, tmp_path / "broker-2", T)


def test_beside_another_replica_it_refuses_before_its_claim_and_the_first_goes_on(
    broker: Broker, finished: Path, url: str, tmp_path: Path
) -> None:
    """A replica rolls at other offsets: a claim would fence the one sidecar that can go on."""
    end = broker.roll(2)
    assert sidecar(broker.path, url).code == 0
    other = replica_of(finished, tmp_path)
    other.roll(len(other.bases) - 1)
    assert end not in other.bases
    below, above = max(b for b in other.bases if b < end), min(b for b in other.bases if b > end)
    for _ in range(3):
        ending = sidecar(other.path, url)
        text = f"the bucket ends at offset {end}, which is inside the broker's segment {below} to {above}"
        assert (ending.code, "t-0" in str(ending), text in str(ending)) == (14, True, True), ending
        assert "another replica" in str(ending)
        judge(url, finished, end)
    end = broker.roll(4)
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def test_it_refuses_where_the_broker_has_less_or_only_later_segments(
    broker: Broker, finished: Path, url: str, tmp_path: Path
) -> None:
    end = broker.roll(3)
    assert sidecar(broker.path, url).code == 0
    behind = Broker(finished, tmp_path / "broker-2", T)
    behind.roll(2)
    ending = sidecar(behind.path, url)
    assert (ending.code, f"last segment begins at {broker.bases[2]}" in str(ending)) == (14, True)
    behind.roll(3)  # it has caught up: the same offsets, the same segments
    assert sidecar(behind.path, url).code == 0
    late = Broker(finished, tmp_path / "broker-3", T)
    late.roll(5)
    late.retain(4)
    ending = sidecar(late.path, url)
    assert (ending.code, f"log begins at {broker.bases[4]}" in str(ending)) == (14, True)
    judge(url, finished, end)


def test_a_gap_is_told_and_never_passed_over(broker: Broker, finished: Path, url: str) -> None:
    end = broker.roll(2)
    assert sidecar(broker.path, url).code == 0
    broker.roll(4)
    broker.retain(3)
    ending = sidecar(broker.path, url)
    assert (ending.code, f"offsets from {end} were deleted before they were linked" in str(ending)) == (14, True)
    judge(url, finished, end)


@pytest.mark.parametrize(("segment", "inside", "first"), [(2, 0, 2), (2, 1, 2), (2, -1, 1), (0, 0, 0), (4, 1, 4)])
def test_a_bucket_without_the_log_gets_nothing_that_lies_below_the_brokers_log_start(
    broker: Broker, finished: Path, url: str, segment: int, inside: int, first: int
) -> None:
    """DeleteRecords leaves the files for minutes. The segment in which the log starts is taken whole, as by Kafka."""
    end = broker.roll(4)
    broker.delete_records(broker.bases[segment] + inside)
    for _ in range(2):
        assert sidecar(broker.path, url).code == 0
        with tiered.open_reader(url) as reader:
            assert reader.topic("t").stream(0).earliest() == broker.bases[first]
        expected = {at: value for at, value in values(finished, "t").items() if broker.bases[first] <= at < end}
        assert read(url, "t") == expected
    assert not [base for base in links(broker) if base < broker.bases[first]]


def test_what_goes_on_in_the_bucket_has_no_gap_below_the_brokers_log_start(
    broker: Broker, finished: Path, url: str
) -> None:
    """The bucket's log begins where it began: segments between its end and the broker's log start are still taken."""
    broker.roll(1)
    assert sidecar(broker.path, url).code == 0
    end = broker.roll(3)
    broker.delete_records(broker.bases[2])
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)
    shutil.rmtree(beside(broker.path))
    end = broker.roll(5)
    broker.delete_records(broker.bases[4] + 1)
    for _ in range(2):
        assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def test_a_log_that_is_cut_below_its_start_before_the_claim_begins_at_the_cut(
    broker: Broker, other: Path, url: str
) -> None:
    """An unclean election: the log start goes back to where the log was cut."""
    broker.lead({0: 0})
    broker.roll(4)
    broker.delete_records(broker.bases[3])
    mirror_of(broker).scan()
    end = broker.elect(other, 2, 5)
    broker.delete_records(broker.bases[2])
    for _ in range(2):
        ending = sidecar(broker.path, url)
        assert ending.code == 0, ending
        assert read(url, "t") == {at: value for at, value in values(other, "t").items() if broker.bases[2] <= at < end}


def test_what_is_linked_before_its_claim_stays_linked_when_the_log_start_moves(
    broker: Broker, finished: Path, url: str
) -> None:
    """The broker's retention moves it, too: what it deletes is what the links are there to keep."""
    end = broker.roll(4)
    mirror_of(broker).scan()
    broker.delete_records(broker.bases[3])
    broker.retain(3)
    mirror_of(broker).scan()
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def test_an_older_disk_of_the_broker_is_told(broker: Broker, finished: Path, url: str) -> None:
    end = broker.roll(3)
    assert sidecar(broker.path, url).code == 0
    for base in broker.bases[2:4]:
        (broker.folder / log_name(base)).unlink()
    ending = sidecar(broker.path, url)
    assert (ending.code, "below" in str(ending)) == (14, True)
    judge(url, finished, end)


def test_a_replica_that_is_fetched_anew_leaves_the_links_as_they_are(broker: Broker, finished: Path, url: str) -> None:
    """Its disk was replaced, or it came back to this broker: what retention took since then is in the links alone."""
    broker.roll(1)
    assert sidecar(broker.path, url).code == 0
    linked = broker.roll(3)
    mirror = mirror_of(broker)
    mirror.scan()
    shutil.rmtree(broker.folder)
    broker.folder.mkdir()
    broker.copy_small_files()
    (broker.folder / log_name(0)).write_bytes(b"")
    mirror.scan()
    assert links(broker) == broker.bases[:4]
    assert "if the replica is being fetched again" in mirror.broken[T].hint
    (broker.folder / log_name(0)).unlink()
    broker.written = 2  # the leader's log begins there by now
    end = broker.roll(5)
    broker.mark({})
    ending = sidecar(broker.path, url)
    assert ending.code == 75, ending  # what is safe of the new copy is not known yet
    judge(url, finished, linked)
    broker.mark({T: end})
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def test_a_segment_that_the_cleaner_left_empty_belongs_to_the_one_before(
    broker: Broker, finished: Path, url: str
) -> None:
    end = broker.roll(4)
    (broker.folder / log_name(broker.bases[2])).write_bytes(b"")
    assert sidecar(broker.path, url).code == 14  # nobody said that records may be missing
    broker.clean([T])
    assert sidecar(broker.path, url, sidecar_compacted=("t",)).code == 0
    without = range(broker.bases[2], broker.bases[3])
    expected = {at: value for at, value in values(finished, "t").items() if at < end and at not in without}
    assert read(url, "t") == expected


@pytest.mark.parametrize(("first", "end", "dropped"), [(1, 4, 1), (1, 3, 2), (0, 4, 3), (1, 2, 1)])
def test_a_segment_that_the_cleaner_merged_over_the_end_of_the_links_is_taken_from_there_on(
    broker: Broker, finished: Path, url: str, first: int, end: int, dropped: int
) -> None:
    """Linked segments keep their records; only later records of the merged segment are new. There may be none."""
    broker.roll(2)
    broker.clean([T])
    assert sidecar(broker.path, url, sidecar_compacted=("t",)).code == 0
    last = broker.roll(4)
    gone = broker.merge(first, end, dropped)
    before = broker.contents()
    mirror_of(broker, compacted=("t",)).scan()
    index = beside(broker.path) / "t-0" / log_name(broker.bases[2]).replace(".log", ".index")
    assert index.exists() == (end == 2)  # the broker's counts from another base, and that of before is of another file
    for _ in range(2):
        ending = sidecar(broker.path, url, sidecar_compacted=("t",))
        assert ending.code == 0, ending
    assert broker.contents() == before
    kept = values(finished, "t").items()
    expected = {at: value for at, value in kept if at < last and (at < broker.bases[2] or at not in gone)}
    assert gone
    assert read(url, "t") == expected
    with closing(StoreLocation.parse(url).open()) as store:
        report = tiered.admin.check(None, store, read_data=True)
    assert [str(each) for each in report.findings if each.severity is not Severity.INFO] == []


def test_a_batch_that_reaches_over_the_end_of_the_links_is_refused(broker: Broker, url: str) -> None:
    broker.roll(2)
    broker.clean([T])
    assert sidecar(broker.path, url, sidecar_compacted=("t",)).code == 0
    broker.roll(4)
    broker.merge(1, 4, 2)
    merged = broker.folder / log_name(broker.bases[1])
    data = bytearray(merged.read_bytes())
    at = batch_starts(bytes(data))[-1]
    base = int.from_bytes(data[at : at + 8], "big")
    start = broker.bases[2] - 1
    del data[:at]
    data[0:8] = start.to_bytes(8, "big")
    data[23:27] = (base - start).to_bytes(4, "big")
    merged.write_bytes(data)
    ending = sidecar(broker.path, url, sidecar_compacted=("t",))
    assert (ending.code, "its log was rewritten" in str(ending)) == (14, True), ending


def test_a_segment_is_never_linked_with_the_indexes_of_another_file(broker: Broker, finished: Path, url: str) -> None:
    """The cleaner gives both their names between the two links."""

    class Exchanging(PosixFiles):
        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            if source.name == log_name(broker.bases[1]) and target.name == LINKING_NAME:
                data = source.read_bytes()
                source.unlink()
                source.write_bytes(data)

    end = broker.roll(3)
    mirror = mirror_of(broker, Exchanging())
    mirror.scan()
    assert isinstance(mirror.broken[T], DataLocalError)
    assert links(broker) == broker.bases[:2]
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


@pytest.mark.parametrize("uploaded", [0, 2])
@pytest.mark.parametrize("gone", [False, True])
def test_a_topic_that_was_made_again_with_more_partitions(
    broker: Broker, finished: Path, url: str, tmp_path: Path, uploaded: int, gone: bool
) -> None:
    """The topic was registered under the id of the new partition, or not at all, and the links of the first stayed.

    ``gone``: the broker has only another partition of the new topic. ``uploaded``: segments of the first before that.
    """
    if uploaded:
        broker.roll(uploaded)
        assert sidecar(broker.path, url).code == 0
    end = broker.roll(4)
    mirror_of(broker).scan()
    again = Broker(finished_log(tmp_path / "again", records=30), tmp_path / "other", T)
    ends = {TopicPartition("t", 0): again.roll(2), TopicPartition("t", 1): again.roll(2)}
    shutil.rmtree(broker.folder)
    shutil.copytree(again.folder, broker.folder.with_name("t-1"))
    if not gone:
        shutil.copytree(again.folder, broker.folder)
    broker.mark(ends)
    ending = sidecar(broker.path, url)
    ours = beside(broker.path) / "t-0"
    told = "is another topic of the same name now" in str(ending), f"stop this and remove {ours})" in str(ending)
    assert (ending.code, *told) == (2, True, True)
    judge(url, finished, end)


def test_a_topic_that_was_given_up_keeps_no_other_waiting(broker: Broker, url: str, tmp_path: Path) -> None:
    """Deleted at the broker and in the bucket, its links removed: what was noted of it refused every later upload."""
    end = broker.roll(2)
    other = finished_log(tmp_path / "other")  # a topic with an id of its own
    shutil.copytree(other / "t-0", broker.path / "t-u-0")
    both = {T: end, TopicPartition("t-u", 0): int(log_bases(PosixFiles(), other / "t-0")[-1])}
    broker.mark(both)
    assert sidecar(broker.path, url).code == 0
    shutil.rmtree(broker.folder)
    with closing(StoreLocation.parse(url).open()) as store:
        store.execute(Delete((topic_key("t"),)))  # as a maintainer does once its grace time is over
    ours = beside(broker.path) / "t-0"
    with pytest.raises(LogDestroyedError) as told:
        sidecar(broker.path, url)
    assert told.value.hint.startswith(f"if the topic was deleted on purpose, stop this and remove {ours}; else ")
    shutil.rmtree(ours)
    assert sidecar(broker.path, url).code == 0
    expected = {at: value for at, value in values(other, "t").items() if at < both[TopicPartition("t-u", 0)]}
    assert read(url, "t-u") == expected
    assert [*Claims(beside(broker.path), PosixFiles()).read()] == [TopicPartition("t-u", 0)]


def test_links_that_are_made_anew_believe_nothing_that_was_noted_of_others(
    broker: Broker, finished: Path, url: str, tmp_path: Path
) -> None:
    """The topic was made again; its links were removed, what the private directory notes of the first one was not."""
    broker.roll(4)
    assert sidecar(broker.path, url).code == 0
    last = finished_log(tmp_path / "again", records=40)
    again = Broker(last, tmp_path / "other", T)
    end = again.roll(3)
    shutil.rmtree(broker.folder)
    shutil.copytree(again.folder, broker.folder)
    shutil.rmtree(beside(broker.path) / "t-0")
    broker.bases = again.bases
    broker.mark({T: end})
    mirror = mirror_of(broker)
    for _ in range(2):
        mirror.scan()
        assert links(broker) == again.bases[:4]
    other = f"file://{tmp_path / 'other-bucket'}"
    sidecar(broker.path, other)
    judge(other, last, end)


def test_links_hold_no_more_than_the_limit(
    broker: Broker, finished: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.roll(4)
    sizes = [(broker.folder / log_name(base)).stat().st_size for base in broker.bases[:4]]
    full = mirror_of(broker, held_bytes=sizes[0] + sizes[1])
    for _ in range(3):
        full.scan()
    assert links(broker) == broker.bases[:3]
    assert [each.message.split()[0] for each in caplog.records].count("sidecar_full") == 1
    for _ in range(3):  # what one run uploads, the next lets go
        assert sidecar(broker.path, url, sidecar_held=sizes[0] + sizes[1]).code == 0
    judge(url, finished, broker.bases[4])


@pytest.mark.long
def test_killed_at_any_effect_it_goes_on(broker: Broker, finished: Path, url: str, tmp_path: Path) -> None:
    """While the broker deletes what was linked just before the kill: nothing is lost, nothing is there twice."""
    broker.roll(1)
    assert sidecar(broker.path, url).code == 0
    end = broker.roll(4)
    for _ in killed_at_each_effect(broker, tmp_path, mirror_of):
        assert sidecar(broker.path, url).code == 0
        judge(url, finished, end)


def test_nobody_else_is_let_in_while_a_look_goes_on(broker: Broker) -> None:
    """A daemon that ends cancels its scan, and the thread that links goes on: two would link side by side."""
    broker.roll(3)
    directory = BrokerDirectory(broker.path, beside(broker.path), clock=SystemClock(), ids=SystemIds())
    directory.acquire()
    linking, goes_on = threading.Event(), threading.Event()
    look = directory._mirror.scan

    def slow_look() -> None:
        linking.set()
        assert goes_on.wait(10)
        look()

    directory._mirror.scan = slow_look  # type: ignore[method-assign]
    looking, ending = threading.Thread(target=directory.scan), threading.Thread(target=directory.release)
    looking.start()
    assert linking.wait(60)
    ending.start()
    ending.join(0.1)
    other = BrokerDirectory(broker.path, beside(broker.path), clock=SystemClock(), ids=SystemIds())
    with pytest.raises(LockedError):
        other.acquire()
    goes_on.set()
    for thread in (looking, ending):
        thread.join(60)
    assert links(broker) == broker.bases[:4]
    other.acquire()
    other.release()


def test_the_private_directory_is_never_a_log_to_write(broker: Broker, finished: Path, url: str) -> None:
    end = broker.roll(3)
    assert sidecar(broker.path, url).code == 0
    place = beside(broker.path)
    before = broker.contents()
    with pytest.raises(LockedError, match="links to the files of a broker"), tiered.open(place):
        pass
    with pytest.raises(LockedError), LocalLog.open(place):
        pass
    assert broker.contents() == before
    held = values(place, "t")
    assert held == {at: value for at, value in values(finished, "t").items() if links(broker)[0] <= at < end}
    assert (place / "t-0" / BEGUN_NAME).exists()
    assert not (place / "t-0" / LINKING_NAME).exists()


def test_a_segment_that_the_limit_never_lets_in_is_no_success(broker: Broker, finished: Path, url: str) -> None:
    """The sync waited for ever, after "everything that was asked for is committed"."""
    end = broker.roll(3)
    size = (broker.folder / log_name(0)).stat().st_size
    ending = sidecar(broker.path, url, sidecar_held=size - 1)
    told = f"t-0: the broker's segment 0 has {size:,} bytes, all links together may hold {size - 1:,}:"
    assert (ending.code, told in str(ending), "--sidecar-held" in str(ending)) == (2, True, True), ending
    largest = max((broker.folder / log_name(base)).stat().st_size for base in broker.bases[:3])
    for _ in range(3):
        assert sidecar(broker.path, url, sidecar_held=largest).code == 0
    judge(url, finished, end)


def test_a_partition_that_moved_to_another_directory_and_back_says_how_it_goes_on(
    broker: Broker, finished: Path, url: str
) -> None:
    """Links of the first directory end before the bucket by then; a repair would write to the broker's files."""
    broker.roll(2)
    assert sidecar(broker.path, url).code == 0
    other = Broker(finished, broker.path.with_name("other"), T)
    other.roll(3)
    assert sidecar(other.path, url).code == 0
    end = broker.roll(4)
    ending = sidecar(broker.path, url)
    ours = beside(broker.path) / "t-0"
    assert (ending.code, f"stop this and remove {ours}" in str(ending), "rejoin" in str(ending)) == (11, True, False)
    shutil.rmtree(ours)
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def test_who_may_not_link_is_told_why(broker: Broker) -> None:
    class Refusing(PosixFiles):
        def link(self, source: Path, target: Path) -> None:
            refused = OSError(errno.EPERM, os.strerror(errno.EPERM))
            raise translate(refused, "link", source) from refused

    broker.roll(2)
    mirror = mirror_of(broker, Refusing())
    mirror.scan()
    assert (mirror.broken[T].exit_code, "fs.protected_hardlinks" in mirror.broken[T].hint) == (12, True)


def test_the_links_of_one_broker_are_not_those_of_another(broker: Broker, finished: Path, url: str) -> None:
    broker.roll(2)
    assert sidecar(broker.path, url).code == 0
    private = beside(broker.path)
    other = Broker(finished, broker.path.with_name("other"), T)
    end = other.roll(4)
    for place, told in ((other.path, f"links to the files of {broker.path}, not of {other.path}"), (private, "own")):
        mirror = Mirror(place, private, PosixFiles(), compacted=(), held_bytes=HELD_BYTES)
        with pytest.raises(ConfigError, match=told):
            mirror.make(SystemIds())
    linked = broker.path.with_name("linked")
    linked.symlink_to(broker.path)
    assert sidecar(linked, url, mirror=private).code == 0
    shutil.rmtree(broker.path)  # and another disk of the same broker took its place
    assert sidecar(other.path, url, mirror=private).code == 0
    judge(url, finished, end)


def test_wrong_places_are_refused(broker: Broker, tmp_path: Path) -> None:
    def refused(place: Path, private: Path) -> TieredError:
        directory = BrokerDirectory(place, private, clock=SystemClock(), ids=SystemIds())
        with pytest.raises(TieredError) as caught:
            directory.acquire()
        return caught.value

    assert isinstance(refused(tmp_path, tmp_path / "x"), NotFoundError)
    assert "lies in the broker's directory" in str(refused(broker.path, broker.path / "tiered"))
    (tmp_path / "linked").symlink_to(broker.path)
    assert "lies in the broker's directory" in str(refused(broker.path, tmp_path / "linked" / "tiered"))
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True)
    assert "is a log directory of its own" in str(refused(broker.path, tmp_path / "log"))


def test_another_file_system_is_refused(broker: Broker, tmp_path: Path) -> None:
    other = Path("/dev/shm") if tmp_path.stat().st_dev != Path("/dev/shm").stat().st_dev else Path("/tmp")
    if other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has one file system")
    place = other / f"tiered-{os.getpid()}-sidecar"
    try:
        with pytest.raises(ConfigError, match="is not on the file system of"):
            Mirror(broker.path, place, PosixFiles(), compacted=(), held_bytes=1).make(SystemIds())
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_the_settings(tmp_path: Path) -> None:
    found = resolve({"sidecar": str(tmp_path / "kafka")}, {"TIERED_UPLOADER_SIDECAR_COMPACTED": "a, b"}, None)
    assert (found.log_dir, found.sidecar_compacted) == (tmp_path / "kafka-tiered", ("a", "b"))
    assert found.sidecar_held == Settings().sidecar_held == HELD_BYTES
    assert resolve({"sidecar": "x", "log_dir": "y"}, {}, None).log_dir == Path("y")
    with pytest.raises(ConfigError, match="topic name"):
        resolve({"sidecar": "x", "sidecar_compacted": "a b"}, {}, None)


@pytest.mark.parametrize(
    ("wrong", "code", "told"), [(b"0\n1\n0 ?\n", 13, "cannot be read"), (b"1\n1\n0 0 0\n", 2, "was written by a newer")]
)
def test_leader_epochs_that_cannot_be_read_are_never_none(
    broker: Broker, finished: Path, other: Path, url: str, wrong: bytes, code: int, told: str
) -> None:
    """With them went what tells another leader's records: these were put behind those that the bucket has."""
    broker.lead({0: 0})
    end = broker.roll(3)
    assert sidecar(broker.path, url).code == 0
    broker.elect(other, 1, 5)
    right = (broker.folder / "leader-epoch-checkpoint").read_bytes()
    (broker.folder / "leader-epoch-checkpoint").write_bytes(wrong)
    ending = sidecar(broker.path, url)
    assert (ending.code, f"leader-epoch-checkpoint {told}" in str(ending)) == (code, True), ending
    judge(url, finished, end)
    (broker.folder / "leader-epoch-checkpoint").write_bytes(right)
    assert sidecar(broker.path, url).code == 14
    judge(url, finished, end)


def test_a_damaged_segment_is_told_by_the_brokers_name_of_it(broker: Broker, finished: Path, url: str) -> None:
    broker.roll(3)
    torn = broker.folder / log_name(broker.bases[1])
    torn.write_bytes(torn.read_bytes()[:-7])
    ending = sidecar(broker.path, url)
    assert (ending.code, f"not all of t-0 could be read: {torn} at byte" in str(ending)) == (13, True), ending
    assert LINKING_NAME not in str(ending)
    judge(url, finished, broker.bases[1])


def test_a_flipped_bit_is_named_with_its_remedy(broker: Broker, finished: Path, url: str) -> None:
    """Only the upload reads all bytes. What the broker fetches again is another file than the one that is linked."""
    end = broker.roll(3)
    rotten, link = (place / "t-0" / log_name(broker.bases[1]) for place in (broker.path, beside(broker.path)))
    right = rotten.read_bytes()
    with rotten.open("r+b") as log:
        log.seek(300)
        log.write(bytes([right[300] ^ 4]))
    ending = sidecar(broker.path, url)
    damage = f"{link} at byte 0: CRC mismatch at offset {broker.bases[1]}"
    assert (ending.code, damage in str(ending), f"stop this and remove {link.parent}" in str(ending)) == (
        13,
        True,
        True,
    )
    judge(url, finished, broker.bases[1])
    rotten.unlink()
    rotten.write_bytes(right)
    shutil.rmtree(link.parent)
    assert sidecar(broker.path, url).code == 0
    judge(url, finished, end)


def test_what_is_the_brokers_own_state_is_not_taken(finished: Path, tmp_path: Path, url: str) -> None:
    broker = Broker(finished, tmp_path / "kafka", T)
    broker.roll(2)
    for topic in INTERNAL:
        shutil.copytree(broker.folder, broker.path / f"{topic}-0")
    shutil.rmtree(broker.folder)
    broker.mark({TopicPartition(topic, 0): broker.bases[2] for topic in INTERNAL})
    assert sidecar(broker.path, url).code == 0
    assert list(beside(broker.path).glob("*-0")) == []


def test_of_two_topics_of_one_name_the_fewer_partitions_are_not_linked(
    broker: Broker, finished: Path, url: str
) -> None:
    """A broker that was away while a topic was made again; the bucket's error spoke of a root that was lost."""
    end = broker.roll(3)
    for number, topic_id in enumerate(("A" * 21 + "Q", None, None)):
        folder = broker.folder.with_name(f"t-{number}")
        if number:
            shutil.copytree(broker.folder, folder)
        if topic_id is None:
            (folder / "partition.metadata").write_bytes((finished / "t-0" / "partition.metadata").read_bytes())
        else:
            (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    broker.mark({TopicPartition("t", number): end for number in range(3)})
    ending = sidecar(broker.path, url)
    assert (ending.code, "but its topic has" in str(ending)) == (13, True), ending
    assert [path.name for path in sorted(beside(broker.path).glob("t-*"))] == ["t-1", "t-2"]
    for partition in (1, 2):
        assert max(read(url, "t", partition)) < end
