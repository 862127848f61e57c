"""Check, restore, merging and compaction of what sinks staged: plain segments come out, as of a log's own."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from tests.support.admin import check, restore
from tests.unit.remote.building import TOPIC_ID, MemorySegment, RemoteLog, batches, other_batches, seal
from tests.unit.remote.recording import RecordingStore
from tests.unit.remote.rewriting import Rewriter
from tests.unit.remote.staging import stage, twins
from tiered.check.check import CheckOptions
from tiered.config import TopicConfig
from tiered.errors import CorruptionError
from tiered.format.kernels import crc32c
from tiered.format.keys import FLAG_MAINTAINER, FLAG_STAGED, index_key
from tiered.format.local_names import log_name
from tiered.format.producer_snapshot import ProducerEntry, encode_snapshot
from tiered.model import EpochEntry, Row
from tiered.plan.side_files import NO_PRODUCERS
from tiered.remote.roots import TopicIds
from tiered.remote.sink_commit import hand_over
from tiered.remote.topics import register_topic
from tiered.store.base import Get, Object, Outcome, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("both_catalogs")


def registered(log: RemoteLog) -> RemoteLog:
    drive(log.store, register_topic(log.topic, log.topic_id, 1, {}), clock=log.clock, ids=log.ids)
    return log


def found(log: RemoteLog, *, read_data: bool = True) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    check(
        None,
        log.store,
        CheckOptions(read_data=read_data),
        on_finding=lambda finding: seen.append((finding.code, finding.message)),
    )
    return seen


def rows_of(log: RemoteLog) -> list[Row]:
    root = log.root
    assert root is not None
    return list(root.rows)


@pytest.fixture
def pair() -> tuple[RemoteLog, RemoteLog]:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    staged = RemoteLog(MemoryStore())
    plain = RemoteLog(MemoryStore())
    registered(staged)
    registered(plain)
    return twins(staged.store, plain.store, seed)


def test_what_is_restored_is_what_a_log_would_have_had(pair: tuple[RemoteLog, RemoteLog], tmp_path: Path) -> None:
    staged, plain = pair
    assert found(staged) == []
    for log, name in ((staged, "staged"), (plain, "plain")):
        restore(log.store, tmp_path / name)
        assert check(tmp_path / name, log.store, CheckOptions(read_data=True)).errors == 0
    for row in rows_of(plain):
        for suffix in (".log", ".index", ".timeindex"):
            name = log_name(row.base).removesuffix(".log") + suffix
            mine, theirs = (tmp_path / each / "flights-0" / name for each in ("staged", "plain"))
            assert mine.read_bytes() == theirs.read_bytes()
    names = ("leader-epoch-checkpoint", f"{rows_of(plain)[-1].next:020d}.snapshot")
    for name in names:
        mine, theirs = (tmp_path / each / "flights-0" / name for each in ("staged", "plain"))
        assert mine.read_bytes() == theirs.read_bytes()


def test_merged_they_are_what_merged_segments_of_a_log_are(pair: tuple[RemoteLog, RemoteLog]) -> None:
    merged, data = [], []
    for log in pair:
        rewriter = Rewriter(log)
        rows = rows_of(log)
        merged.append(rewriter.merge(rows))
        data.append(rewriter.data(merged[-1]))
        assert rewriter.bundle(merged[-1]).indexes.leader_epochs in ((), (EpochEntry(0, 0),))
    assert data[0] == data[1]
    same = [row._replace(id_hi=0, id_lo=0, idx_len=0, appended_ms=-1) for row in merged]  # a sink's: of its decision
    assert same[0] == same[1]
    assert same[0].flags == FLAG_MAINTAINER
    assert found(pair[0]) == []


def test_compacted_they_are_what_a_compacted_log_is(pair: tuple[RemoteLog, RemoteLog]) -> None:
    config = TopicConfig(cleanup_policy="compact", segment_bytes=4000)
    cleaned = []
    for log in pair:
        rewriter = Rewriter(log, config)
        assert rewriter.compact(1_900_000_000_000) is not None
        cleaned.append([(row.base, row.next, row.flags & ~FLAG_STAGED, rewriter.data(row)) for row in rows_of(log)])
    assert [row[:2] for row in cleaned[0]] == [row[:2] for row in cleaned[1]]
    assert [row[3] for row in cleaned[0]] == [row[3] for row in cleaned[1]]


def test_producers_of_before_are_not_missed_behind_what_was_staged() -> None:
    log = registered(RemoteLog(MemoryStore()))
    log.add(seal(batches(0, 20), snapshot=encode_snapshot([ProducerEntry(7, 0, 0, 19, 9, 5, -1, -1)])))
    drive(log.store, hand_over(TopicIds(log.topic, log.topic_id), [0], "spark", "test"), clock=log.clock)
    rows = stage(log, [seal(batches(0, 20)), seal(batches(0, 30))], 0)
    assert found(log) == []
    rewriter = Rewriter(log)
    indexes = rewriter.bundle(rewriter.merge(rows)).indexes
    assert indexes.producer_snapshot == NO_PRODUCERS
    assert indexes.leader_epochs == (EpochEntry(0, 0), EpochEntry(1, 20))
    assert [each for each in found(log) if each[0] != "invariant"] == []  # the root was put by hand, its roles with it


def damaged(log: RemoteLog, what: str, rows: list[Row]) -> None:
    if what == "log":
        log.damage(log.log_key(rows[1]), 1000)
        return
    got = log.store.execute(Get(index_key(TOPIC_ID, 0, rows[0 if what == "bundle" else 2])))
    assert isinstance(got, Object)
    log.replace(index_key(TOPIC_ID, 0, rows[1]), got.data)


@pytest.mark.parametrize(
    ("what", "codes"),
    [
        ("log", {"log_crc", "object_checksum"}),
        ("bundle", {"descriptor"}),
        ("another transaction's bundle", {"descriptor"}),
    ],
)
def test_check_finds_damage_of_what_was_staged(what: str, codes: set[str]) -> None:
    log = registered(RemoteLog(MemoryStore()))
    rows = stage(log, [seal(batches(0, 100)), seal(other_batches(0, 100))], 0)
    rows += stage(log, [seal(other_batches(0, 100))], 0, "quer2")
    damaged(log, what, rows)
    assert {code for code, _ in found(log)} == codes


class OnceDamaged(RecordingStore):
    """The first body of a ``.log`` arrives with a bit that is another one."""

    left = 1

    def execute(self, request: StoreRequest) -> Outcome:
        got = super().execute(request)
        if isinstance(request, Get) and request.key.endswith(".log") and self.left and isinstance(got, Object):
            self.left -= 1
            return Object(got.data[:500] + bytes([got.data[500] ^ 1]) + got.data[501:], got.etag, got.size)
        return got


def test_a_body_that_arrives_damaged_is_fetched_again(tmp_path: Path) -> None:
    log = registered(RemoteLog(MemoryStore()))
    stage(log, [seal(batches(0, 100))], 0)
    restore(OnceDamaged(log.store), tmp_path / "log")
    log.damage(log.log_key(rows_of(log)[0]), 900)
    with pytest.raises(CorruptionError, match="flights-0"):
        restore(log.store, tmp_path / "other")


def test_an_object_that_was_staged_out_of_order_is_not_restored(tmp_path: Path) -> None:
    log = registered(RemoteLog(MemoryStore()))
    good = seal(batches(0, 20))
    data = good.data[len(good.data) // 2 :] + good.data[: len(good.data) // 2]
    odd = MemorySegment(dataclasses.replace(good.descriptor, crc32c=crc32c(data)), data, good.sealed_indexes)
    stage(log, [good, odd], 0)
    with pytest.raises(CorruptionError, match="counted from its base 20"):
        restore(log.store, tmp_path / "log")
    assert "log_order" in {code for code, _ in found(log)}
