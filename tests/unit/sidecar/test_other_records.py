"""A lost private directory beside a broker whose log was rewritten: nothing is put behind what the bucket has."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.sidecar.broker import Broker, read, sidecar, values
from tiered.clock import SystemClock, SystemIds
from tiered.config import TopicConfig
from tiered.engine.disk import LogExtent
from tiered.engine.journal import Journal
from tiered.engine.steps import BucketSteps
from tiered.errors import OffsetGapError
from tiered.model import EpochEntry, TopicPartition
from tiered.plan.lineage import epoch_at, need_same_records
from tiered.plan.maintenance import MaintenanceKind
from tiered.remote.maintain import Maintainer
from tiered.remote.topics import load_topic
from tiered.sidecar.directory import BrokerDirectory
from tiered.sidecar.mirror import beside
from tiered.store.capabilities import probe
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.unique_upload import PartSizes

T = TopicPartition("t", 0)
OLD = (EpochEntry(0, 0), EpochEntry(1, 50))


@pytest.fixture
def broker(finished: Path, tmp_path: Path) -> Broker:
    made = Broker(finished, tmp_path / "kafka", T)
    made.lead({0: 0})
    return made


def objects(tmp_path: Path) -> dict[str, bytes]:
    """Every object of the bucket."""
    bucket = tmp_path / "bucket"
    files = {path.relative_to(bucket): path for path in bucket.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in files.items() if name.parts[0] != ".tiered"}


class Watched(BrokerDirectory):
    """Does ``then`` once, when a claim that was judged already is about to be sent."""

    def __init__(self, broker: Path, then: Callable[[], None] = lambda: None) -> None:
        super().__init__(broker, beside(broker), clock=SystemClock(), ids=SystemIds())
        self._then = [lambda: None, then]

    def extent(self, tp: TopicPartition, *, exact: bool) -> LogExtent:
        if self._then:
            self._then.pop(0)()
        return super().extent(tp, exact=exact)


@contextlib.contextmanager
def claims(directory: BrokerDirectory, url: str) -> Iterator[Callable[[], object]]:
    """Claims by the driver that threads use."""
    directory.acquire()
    directory.scan()
    journal = Journal(directory.path, directory.files)
    with closing(StoreLocation.parse(url).open()) as store, closing(journal):
        steps = BucketSteps(store.url, directory, lambda: journal, owner="o", sizes=PartSizes())
        yield lambda: drive(store, steps.claim(T))
    directory.release()


@pytest.mark.parametrize("cut", [1, 3])
def test_beside_a_lost_private_directory_a_rewritten_log_is_refused(
    broker: Broker, finished: Path, other: Path, url: str, tmp_path: Path, cut: int
) -> None:
    end = broker.roll(4)
    assert sidecar(broker.path, url).code == 0
    shutil.rmtree(beside(broker.path))
    before = objects(tmp_path)
    broker.elect(other, cut, 5)
    text = f"of the offsets {broker.bases[cut]} to {end} the bucket holds records that the broker no longer has"
    for _ in range(2):
        ending = sidecar(broker.path, url)
        assert (ending.code, text in str(ending)) == (14, True), ending
        assert objects(tmp_path) == before
    with claims(Watched(broker.path), url) as claim, pytest.raises(OffsetGapError) as gap:
        claim()
    assert (gap.value.start, gap.value.end) == (broker.bases[cut], end)
    assert objects(tmp_path) == before
    assert read(url, "t") == {at: value for at, value in values(finished, "t").items() if at < end}


@pytest.mark.parametrize("epochs", [{0: 0, 3: 1, 4: 4}, {3: 3, 4: 4}, {4: 4}, {}])
def test_what_the_broker_has_forgotten_contradicts_nothing(
    broker: Broker, finished: Path, other: Path, url: str, epochs: dict[int, int]
) -> None:
    """Retention takes early leader epochs with their segments. ``epochs``: in which segment each begins."""
    broker.roll(4)
    last = broker.elect(other, 1, 5)
    broker.mark({T: broker.bases[4]})
    assert sidecar(broker.path, url).code == 0
    shutil.rmtree(beside(broker.path))
    broker.mark({T: last})
    broker.lead({epoch: broker.bases[base] for epoch, base in epochs.items()})
    if epochs == {4: 4}:
        broker.retain(4)
    ending = sidecar(broker.path, url)
    assert ending.code == 0, ending
    expected = {at: value for at, value in values(finished, "t").items() if at < broker.bases[1]}
    expected |= {at: value for at, value in values(other, "t").items() if broker.bases[1] <= at < last}
    assert read(url, "t") == expected


def test_what_another_commits_before_the_claim_is_compared_too(
    broker: Broker, finished: Path, other: Path, url: str, tmp_path: Path
) -> None:
    """Both replicas are right up to segment 1; the other one's sidecar goes on while this one's claim is on its way."""
    broker.roll(1)
    assert sidecar(broker.path, url).code == 0
    second = Broker(finished, tmp_path / "broker-2", T)
    second.lead({0: 0})
    second.roll(4)
    second.elect(other, 2, 5)

    def go_on() -> None:
        broker.roll(4)
        assert sidecar(broker.path, url).code == 0

    with claims(Watched(second.path, go_on), url) as claim, pytest.raises(OffsetGapError, match="no longer has"):
        claim()
    assert not (beside(second.path) / "t-0" / "tiered-begun").exists()


def test_the_private_directory_begins_anew_where_nothing_was_rewritten(
    broker: Broker, finished: Path, url: str
) -> None:
    """Each claim begins a leader epoch in the catalog that the broker knows nothing of."""
    for sealed in range(1, 6):
        end = broker.roll(sealed)
        ending = sidecar(broker.path, url)
        assert ending.code == 0, ending
        shutil.rmtree(beside(broker.path))
    assert read(url, "t") == {at: value for at, value in values(finished, "t").items() if at < end}


def test_a_log_whose_leader_changed_before_it_was_uploaded_goes_on(
    broker: Broker, other: Path, finished: Path, url: str
) -> None:
    """The catalog's own lineage begins with the newest leader epoch of the first claim."""
    broker.roll(4)
    broker.elect(other, 1, 5)
    for sealed in range(1, 6):
        broker.mark({T: broker.bases[sealed]})
        ending = sidecar(broker.path, url)
        assert ending.code == 0, ending
        shutil.rmtree(beside(broker.path))
    expected = {at: value for at, value in values(finished, "t").items() if at < broker.bases[1]}
    expected |= {at: value for at, value in values(other, "t").items() if broker.bases[1] <= at < broker.bases[5]}
    assert read(url, "t") == expected


def test_of_a_log_that_was_trimmed_to_its_end_the_last_segment_tells(broker: Broker, other: Path, url: str) -> None:
    end = broker.roll(4)
    assert sidecar(broker.path, url).code == 0
    shutil.rmtree(beside(broker.path))
    with closing(StoreLocation.parse(url).open()) as store:
        entry = drive(store, load_topic("t"))
        assert entry is not None
        maintainer = Maintainer(T, entry.topic_id, TopicConfig(), owner="o")
        plan = drive(store, maintainer.plan((MaintenanceKind.RETENTION,), begin_at=end))
        assert plan is not None
        drive(store, maintainer.run(plan.actions[0], drive(store, probe())))
    assert read(url, "t") == {}
    broker.elect(other, 1, 5)
    ending = sidecar(broker.path, url)
    assert (ending.code, "they are of leader epoch 0, the broker's are of 3" in str(ending)) == (14, True), ending


@pytest.mark.parametrize(
    ("theirs", "start"),
    [
        ([(0, 0), (1, 50)], None),
        ([(0, 0), (1, 50), (2, 99)], 99),
        ([(0, 0), (1, 50), (2, 100)], None),
        ([(0, 0), (3, 70)], 50),
        ([(0, 0), (3, 40)], 40),
        ([(0, 0)], 50),
        ([(3, 90)], 90),
        ([(3, 100)], None),
        ([(1, 99)], None),
        ([], None),
    ],
)
def test_where_two_logs_differ(theirs: list[tuple[int, int]], start: int | None) -> None:
    epochs = [EpochEntry(*each) for each in theirs]
    if start is None:
        need_same_records("t-0", OLD, epochs, 100)
        need_same_records("t-0", epochs, OLD, 100)
        return
    for one, another in ((OLD, epochs), (epochs, OLD)):
        with pytest.raises(OffsetGapError) as gap:
            need_same_records("t-0", one, another, 100)
        assert (gap.value.start, gap.value.end) == (start, 100)


def test_which_leader_epoch_an_offset_has() -> None:
    assert [epoch_at(OLD, at) for at in (-1, 0, 49, 50, 99)] == [-1, 0, 0, 1, 1]
