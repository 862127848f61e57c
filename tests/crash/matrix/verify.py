"""What must be true of a log that is opened again, whatever happened to it before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.crash.matrix.disk import Tree, read_tree
from tests.crash.matrix.ledger import Ledger, Promise, Sent
from tests.crash.matrix.trace import TraceFiles
from tests.crash.matrix.world import CONFIG, SETTINGS, T, World
from tests.support.admin import check
from tiered.check.findings import Severity
from tiered.config import TopicConfig
from tiered.format.batch import decode_records, read_header
from tiered.format.kernels import Record
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.partition.read_log import ReadLog
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds

RUNNING = (".lock", "tiered-tasks.json")
"""Files that say who has the log and how his tasks did: they change with every open."""


class Reopened:
    """The directories of a crashed world, opened again."""

    def __init__(self, root: Path, directories: Iterable[str], now_ms: int) -> None:
        self.root = root
        self.paths = [root / name for name in directories]
        self.files = TraceFiles(root)
        self.clock = FakeClock(now_ms)
        self.log: LocalLog | LocalTier = self._open()

    def _open(self) -> LocalLog | LocalTier:
        ids = SeededIds(2)
        if len(self.paths) == 1:
            return LocalLog.open(self.paths[0], clock=self.clock, ids=ids, files=self.files, config=SETTINGS)
        return LocalTier.open(self.paths, clock=self.clock, ids=ids, files=self.files, config=SETTINGS)

    def again(self, *, clean: bool) -> None:
        """Closed or killed, and opened."""
        if clean:
            self.log.close()
        else:
            self.files.abandon()
        self.log = self._open()

    def tree(self) -> Tree:
        """All files but those of :data:`RUNNING`."""
        return {path: data for path, data in read_tree(self.root).items() if path.name not in RUNNING}


def read_records(partition: ReadLog) -> list[Record]:
    """Everything, control records included."""
    start = partition.positions().start_offset
    records = [record for batch in partition.read_batches(start) for record in decode_records(batch)]
    return [record for record in records if record.offset >= start]


Content = dict[TopicPartition, tuple[int, int, list[Record]]]
"""Start, end and records of every partition."""


def content(log: LocalLog | LocalTier) -> Content:
    """What a reader sees."""
    found: Content = {}
    for tp in log.partitions():
        partition = log.partition(tp)
        positions = partition.positions()
        found[tp] = positions.start_offset, positions.end_offset, read_records(partition)
    return found


def verify_topics(log: LocalLog | LocalTier, ledger: Ledger, at: int) -> None:
    """A topic is there wholly or not at all, and as the last call that returned left it."""
    there = {name: set() for name in log.topics()}  # type: dict[str, set[int]]
    for tp in log.partitions():
        there.setdefault(tp.topic, set()).add(tp.partition)
    for name, what in ledger.topic_states(at).items():
        if what == "created":
            assert name in there, f"topic {name} is gone"
        if what == "deleted":
            assert name not in there, f"topic {name} is there again"
        if name in there:
            assert there[name] == set(range(log.topics()[name].partitions)), f"topic {name} has only {there[name]}"


def verify_partition(partition: ReadLog, promise: Promise, expired: set[bytes], *, offline: bool = False) -> None:
    """Records, offsets, start, end, transactions, indexes of one partition."""
    positions = partition.positions()
    start, end = positions.start_offset, positions.end_offset
    where = f"{partition.tp} {start}..{end}"
    if promise.restart is not None and start == end == promise.restart:
        assert read_records(partition) == []
        return
    assert promise.floor <= end <= promise.ceiling, f"{where}: expected an end {promise.floor}..{promise.ceiling}"
    assert promise.start_floor <= start, f"{where}: the start went back below {promise.start_floor}"
    assert start <= max(promise.start_ceiling, 0), f"{where}: the start is above {promise.start_ceiling}"
    assert end in promise.boundaries, f"{where}: ends inside of a batch {sorted(promise.boundaries)}"
    records = read_records(partition)
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets)), f"{where}: offsets {offsets}"
    assert all(start <= offset < end for offset in offsets), f"{where}: offsets {offsets}"
    seen = [record.value for record in records if record.value is not None and record.value.startswith(b"value")]
    assert len(seen) == len(set(seen)), f"{where}: a record is there twice"
    for record in records:
        candidates = promise.candidates(record.offset)
        found = [(sent.values[record.offset - sent.base], sent) for sent in candidates]
        assert any((record.key, record.value) == value for value, _ in found), f"{where}: {record} was never sent"
        expected = promise.expected(record.offset)
        if expected is not None and record.offset < promise.floor:
            assert expected.values[record.offset - expected.base] == (record.key, record.value), f"{where}: {record}"
    verify_gaps(partition, promise, records, (start, end), expired)
    verify_transactions(partition, promise, records, start, end, offline=offline)
    verify_lookups(partition, records)
    verify_epochs(partition, start, promise.start_ceiling)


def verify_epochs(partition: ReadLog, start: int, leaving: int) -> None:
    """The checkpoint of leader epochs says of every batch what the batch says.

    Below ``leaving`` it may have forgotten: records go after it, and after a crash some may be there still.
    """
    entries = partition.leader_epochs()
    starts = [entry.start_offset for entry in entries]
    assert starts == sorted(set(starts)), f"{partition.tp}: epochs {entries}"
    for batch in partition.read_batches(start):
        header = read_header(batch)
        known = [entry.epoch for entry in entries if entry.start_offset <= max(header.base_offset, start)]
        forgotten = not known and header.base_offset < leaving
        assert forgotten or known[-1:] == [header.leader_epoch], (
            f"{partition.tp}: {header.base_offset} is of {header.leader_epoch}"
        )


def verify_gaps(
    partition: ReadLog, promise: Promise, records: list[Record], extent: tuple[int, int], expired: set[bytes]
) -> None:
    """A record that is missing is one that compaction may take: its key has a newer one, or it was aborted."""
    start, end = extent
    there = {record.offset for record in records} | promise.holes
    history = history_below(promise, end)
    newest: dict[bytes | None, int] = {}
    aborted = {offset for offset, state in outcomes(history, end).items() if state == "abort"}
    for sent in history:
        if sent.marker:
            continue
        for number, (key, _) in enumerate(sent.values):
            if sent.base + number not in aborted:
                newest[key] = sent.base + number
    known = {offset for sent in history for offset in range(sent.base, sent.end)}
    assert not set(range(start, end)) - known - promise.holes, f"{partition.tp} {start}..{end}: a hole that nobody left"
    for sent in history:
        for number, (key, value) in enumerate(sent.values):
            offset = sent.base + number
            if not start <= offset < end or offset in there:
                continue
            what = f"{partition.tp} {start}..{end}: {offset} ({key!r}: {value!r}) is missing"
            assert partition.config.compacted, what
            if sent.marker or offset in aborted:
                continue
            gone = value is None and key is not None and key in expired
            assert gone or (key is not None and newest[key] > offset), what


def history_below(promise: Promise, end: int) -> list[Sent]:
    """The batches that make up the log, in order; of those that were sent to one offset the one acknowledged last."""
    chosen: dict[int, Sent] = {}
    for sent in promise.sent:
        if sent.end <= end and not (sent.base in chosen and sent not in promise.kept):
            chosen[sent.base] = sent
    return [chosen[base] for base in sorted(chosen)]


def outcomes(history: list[Sent], end: int) -> dict[int, str]:
    """Of each transactional record ``commit``, ``abort`` or ``open``, as the markers below ``end`` say."""
    states: dict[int, str] = {}
    running: dict[int, list[int]] = {}
    for sent in history:
        if not sent.transactional or sent.end > end:
            continue
        if sent.marker:
            for offset in running.pop(sent.pid, []):
                states[offset] = sent.marker
        else:
            running.setdefault(sent.pid, []).extend(range(sent.base, sent.end))
            states.update(dict.fromkeys(range(sent.base, sent.end), "open"))
    return states


def verify_transactions(
    partition: ReadLog, promise: Promise, records: list[Record], start: int, end: int, *, offline: bool
) -> None:
    """What is stable, and what of it a ``read_committed`` reader is not shown.

    ``offline``: a marker was written whose index entry was not; then what is stable stays where it was.
    """
    history = history_below(promise, end)
    states = outcomes(history, end)
    still = [offset for offset, state in states.items() if state == "open"]
    stable = max(min(still, default=end), start)
    found = partition.last_stable_offset()
    assert found == stable or (offline and found < stable), f"{partition.tp}: stable to {found}, not {stable}"
    stable = found
    aborted = partition.aborted_txns(start, end)
    producers = {offset: sent.pid for sent in history for offset in range(sent.base, sent.end) if not sent.marker}
    for record in records:
        if record.offset >= stable or record.offset not in producers:
            continue
        pid, state = producers[record.offset], states.get(record.offset, "commit")
        hidden = any(t.producer_id == pid and t.first_offset <= record.offset <= t.last_offset for t in aborted)
        assert hidden == (state == "abort"), f"{partition.tp}: {record.offset} of {pid} is {state}: {aborted}"


def verify_lookups(partition: ReadLog, records: list[Record]) -> None:
    """Every offset and every timestamp is found where it is."""
    for record in records:
        header = read_header(next(partition.read_batches(record.offset, record.offset + 1)))
        assert header.base_offset <= record.offset <= header.last_offset
    for timestamp in {record.timestamp for record in records}:
        first = next(record for record in records if record.timestamp >= timestamp)
        found = partition.offset_for_time(timestamp)
        assert found == (first.offset, first.timestamp), f"{partition.tp} at {timestamp}: {found}, not {first}"


def verify_promises(log: LocalLog | LocalTier, ledger: Ledger, at: int, *, power: bool, expired: set[bytes]) -> None:
    """Everything that was promised when ``at`` effects had been made."""
    verify_topics(log, ledger, at)
    for tp in log.partitions():
        verify_partition(log.partition(tp), ledger.promise(tp, at, power=power), expired)


def verify_check(root: Path, directories: Iterable[str], *, gaps: bool) -> None:
    """The product's own check finds nothing. ``gaps``: a cut may have left offsets without records."""
    for name in directories:
        report = check(root / name, None)
        bad = [f for f in report.findings if f.severity != Severity.INFO and not (gaps and "gap" in f.code)]
        assert bad == [], [str(finding) for finding in bad]


def retry_producers(reopened: Reopened, ledger: Ledger, at: int, *, power: bool, forgotten: set[int]) -> None:
    """Each producer sends again what it does not know to be there: it is answered, or appended once."""
    for tp in reopened.log.partitions():
        partition = reopened.log.partition(tp)
        positions = partition.positions()
        promise = ledger.promise(tp, at, power=power)
        history = history_below(promise, positions.end_offset)
        for pid in sorted({sent.pid for sent in promise.sent if sent.pid >= 0} - forgotten):
            mine = [sent for sent in promise.sent if sent.pid == pid]
            there = [sent for sent in history if sent.pid == pid]
            if any(sent.marker for sent in mine) or (there and there[-1].base < positions.start_offset):
                continue
            if there:
                assert partition.append_batches(there[-1].raw).offset == there[-1].base, f"{tp}: {pid} is there twice"
            for sent in mine:
                if sent.end > (there[-1].end if there else 0):
                    end = partition.positions().end_offset
                    assert partition.append_batches(sent.raw).offset == end


def append_afterwards(reopened: Reopened) -> Content:
    """Every partition takes records, flushes and closes; what it holds then."""
    reopened.clock.advance(1)
    if T.topic not in reopened.log.topics():
        reopened.log.create_topic(T.topic, 1, TopicConfig(**CONFIG))
        assert content(reopened.log)[T] == (0, 0, [])
    for tp in reopened.log.partitions():
        partition = reopened.log.partition(tp)
        end = partition.positions().end_offset
        assert partition.append([NewRecord(b"afterwards", b"z")]).offset == end
        partition.flush()
        assert [record.value for record in read_records(partition)][-1] == b"afterwards"
    return content(reopened.log)


def verify_crash(root: Path, world: World, at: int, *, power: bool) -> None:
    """All of it: open, look, kill, open twice (nothing changes), send again, append, close, open."""
    directories, ledger, expired = [path.name for path in world.directories], world.ledger, world.expired
    reopened = Reopened(root, directories, world.clock.now_ms())
    try:
        verify_promises(reopened.log, ledger, at, power=power, expired=expired)
        first = content(reopened.log)
        reopened.again(clean=False)
        assert content(reopened.log) == first, "a second recovery finds other records"
        tree = reopened.tree()
        reopened.again(clean=False)
        after = reopened.tree()
        changed = sorted(str(path) for path in tree.keys() | after.keys() if tree.get(path, 0) != after.get(path, 0))
        assert not changed, f"a third recovery changes {changed}"
        verify_promises(reopened.log, ledger, at, power=power, expired=expired)
        retry_producers(reopened, ledger, at, power=power, forgotten=world.forgotten)
        last = append_afterwards(reopened)
        reopened.log.close()
        verify_check(root, directories, gaps=ledger.has_gaps)
        reopened.log = reopened._open()
        assert content(reopened.log) == last, "a clean stop changed records"
    finally:
        reopened.files.abandon()
