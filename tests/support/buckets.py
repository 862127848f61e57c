"""A log with transactions in a bucket, with versions or without, and ways to damage it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tiered
from tests.support.admin import apply_repair, check, plan_repair
from tiered.check.check import CheckOptions
from tiered.check.findings import Finding, Severity
from tiered.format.batch import BatchHeader
from tiered.format.bundle import SectionKind
from tiered.format.keys import FLAG_ABORTED_TXNS, Role, index_key, root_key, segment_key
from tiered.format.root import Root, decode_root
from tiered.model import Row, TopicPartition
from tiered.plan.catalog_edit import ReplaceIntent, TrimIntent
from tiered.remote.catalog import Catalog
from tiered.remote.segment_rewriter import RewriteContext, SegmentOutput, in_turn, merge_rows
from tiered.remote.topics import TopicEntry, load_topic
from tiered.repair.plan import RepairOptions, RepairPlan, Workbench
from tiered.store.base import ABSENT, Delete, Get, List, ListPage, NewId, Object, Put, Steps, Store
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

TP = TopicPartition("t", 0)
SETTINGS = {"segment.bytes": 700, "index.interval.bytes": 100}
STORES = ("versions", "memory", "directory")
Seen = list[tuple[int, bytes | None]]


@dataclass
class Bucket:
    """A store, the log directory that was uploaded to it, and the topic."""

    store: Store
    directory: Path
    kind: str
    versioned: bool = False

    @property
    def entry(self) -> TopicEntry:
        entry = drive(self.store, load_topic(TP.topic))
        assert entry is not None
        return entry

    @property
    def root_key(self) -> str:
        return root_key(self.entry.topic_id, 0)

    @property
    def root(self) -> Root:
        return decode_root(self.data(self.root_key), key=self.root_key)

    def rows(self) -> list[Row]:
        return list(self.root.rows)

    def log_key(self, row: Row) -> str:
        return segment_key(self.entry.topic_id, 0, row)

    def index_key(self, row: Row) -> str:
        return index_key(self.entry.topic_id, 0, row)

    def data(self, key: str) -> bytes:
        got = self.store.execute(Get(key))
        assert isinstance(got, Object)
        return bytes(got.data)

    def delete(self, *keys: str) -> None:
        self.store.execute(Delete(keys))

    def replace(self, key: str, data: bytes) -> None:
        """Put other bytes under a key, as no program of ours does."""
        self.delete(key)
        self.store.execute(Put(key, data, ABSENT))

    def listed(self, part: str = "") -> list[str]:
        page = self.store.execute(List(""))
        assert isinstance(page, ListPage)
        assert not page.more
        return [entry.key for entry in page.entries if part in entry.key]

    def plan(self, **options: object) -> RepairPlan:
        return plan_repair(self.store, [TP], RepairOptions(**options))  # type: ignore[arg-type]

    def repair(self, **options: object) -> RepairPlan:
        """Plan and carry out; a second plan must find what the first one left, and no more."""
        plan = self.plan(**options)
        apply_repair(self.store, plan)
        again = self.plan(**options)
        assert [action.where for action in again.actions] == [action.where for action in plan.left]
        return plan

    def repair_once(self, **options: object) -> RepairPlan:
        """Plan and carry out; nothing is left then."""
        plan = self.plan(**options)
        apply_repair(self.store, plan)
        assert self.plan().actions == ()
        return plan

    def committed(self) -> Seen:
        with tiered.open_reader(self.store.url) as reader:
            return [(seen.offset, seen.value) for seen in reader.topic("t").read(isolation="read_committed")]

    def merge(self, first: int, last: int) -> Row:
        """Merge the segments ``first`` to ``last``; return the new row."""
        return self._rewrite(first, last, merge_rows)

    def compact(self, first: int, last: int) -> Row:
        """Write the segments ``first`` to ``last`` without one batch that no transaction needs; return the new row."""

        def without_one(context: RewriteContext, rows: Sequence[Row]) -> Steps[Row]:
            output, dropped = SegmentOutput(context, rows, (yield NewId())), list[int]()

            def take(header: BatchHeader, batch: memoryview) -> Steps[bool]:
                if not dropped and header.producer_id < 0:
                    dropped.append(header.base_offset)
                    return True
                yield from output.keep(header, batch)
                return True

            yield from context.read(in_turn(rows), take)
            assert dropped
            txns = b""
            for row in rows:
                if row.flags & FLAG_ABORTED_TXNS:
                    txns += yield from context.lookup.section(row, SectionKind.TXN_INDEX)
            return (yield from output.finish(txns, *(yield from context.state_at_end(rows))))

        return self._rewrite(first, last, without_one)

    def _rewrite(self, first: int, last: int, write: Callable[[RewriteContext, Sequence[Row]], Steps[Row]]) -> Row:
        def steps() -> Steps[Row]:
            desk = yield from Workbench(None, "test").desk(TP, self.entry)
            rows = self.rows()[first:last]
            new = yield from write(desk.context, rows)
            yield from desk.catalog.commit(ReplaceIntent(tuple(rows), (new,)))
            return new

        return drive(self.store, steps())

    def swap(self, one: str, two: str) -> None:
        """Two objects change places."""
        first, second = self.data(one), self.data(two)
        self.replace(one, second)
        self.replace(two, first)

    def named(self) -> list[str]:
        """Return where ``check`` finds something wrong."""
        return [one.where for one in self.findings() if one.severity is not Severity.INFO]

    def trim(self, offset: int) -> None:
        """Delete the records below an offset."""

        def steps() -> Steps[Root]:
            catalog = Catalog(self.entry.topic_id, 0, "t", known=self.entry.known)
            yield from catalog.claim(Role.MAINTAINER, "test")
            return (yield from catalog.commit(TrimIntent(offset)))

        drive(self.store, steps())

    def findings(self) -> tuple[Finding, ...]:
        return check(None, self.store, CheckOptions(read_data=True)).findings

    def continues(self) -> None:
        """A disk that wrote appends more, and all that is there is right."""
        with tiered.open(self.directory, self.store.url) as log, log.topic("t").transaction("a") as txn:
            txn.append(b"more")
        assert check(self.directory, self.store, CheckOptions(read_data=True)).exit_code == 0


@contextmanager
def bucket(kind: str, tmp_path: Path) -> Iterator[Bucket]:
    name = f"repair-{tmp_path.name}"
    store: Store = (
        DirectoryStore(tmp_path / "store") if kind == "directory" else MemoryStore(name, versioned=kind == "versions")
    )
    try:
        yield Bucket(store, tmp_path / "log", kind, versioned=kind == "versions")
    finally:
        store.close()
        MemoryStore.forget(name)


def write(place: Bucket, seed: int = 0, steps: int = 80) -> None:
    """Transactions of three producers and single records, in small segments."""
    chance = random.Random(seed)
    with tiered.open(place.directory, place.store.url) as log:
        topic = log.topic("t", create=True, config=SETTINGS)
        running: dict[str, tiered.Transaction] = {}
        for step in range(steps):
            name, body = chance.choice("abc"), b"%d" % step + b"x" * 40
            if chance.random() < 0.2:
                topic.append(body)
            elif name not in running:
                running[name] = topic.transaction(name)
                running[name].append(body)
            elif chance.random() < 0.6:
                running[name].append(body)
            else:
                txn = running.pop(name)
                txn.commit() if chance.random() < 0.5 else txn.abort()
        for txn in running.values():
            txn.abort()
        log.sync(timeout=60)
