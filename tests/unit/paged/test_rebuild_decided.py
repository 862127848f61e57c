"""A lost catalog of what sinks alone wrote: their decisions give it back, exactly, or it is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random

import pytest

from tests.unit.paged.sinks import TP, commit, decide, keep_copy, log_of_sinks, lose
from tests.unit.remote.building import TRUSTED, RemoteLog, batches, seal
from tests.unit.remote.rewriting import Rewriter
from tests.unit.remote.staging import stage
from tiered.care.rebuild import RebuildPlan
from tiered.care.run import check, plan_rebuild, rebuild
from tiered.errors import ConfigError, CorruptionError
from tiered.format.crc import crc32c
from tiered.format.decision import Decision, decode_decision, encode_decision
from tiered.format.keys import (
    DECISIONS_PREFIX,
    Role,
    decision_key,
    gc_audit_key,
    hist_prefix,
    index_key,
    root_key,
    segment_key,
)
from tiered.format.root import Root, encode_root
from tiered.model import Row
from tiered.plan.rebuild import VERSION_STEP
from tiered.remote.hist import copy_root
from tiered.remote.stage import upload_staged
from tiered.remote.sweep_staged import DECISION_KEPT_MS
from tiered.remote.upload import upload_segment
from tiered.store.base import ABSENT, Delete, Get, Missing, Object, Outcome, Put, StoreRequest, list_all
from tiered.store.driver import drive


@pytest.fixture
def log() -> RemoteLog:
    return log_of_sinks()


def root_of(log: RemoteLog) -> Root:
    root = log.root
    assert root is not None
    return root


def forget_ends(log: RemoteLog) -> None:
    """As releases before decided."""
    for entry in drive(log.store, list_all(DECISIONS_PREFIX), clock=log.clock, ids=log.ids):
        got = log.store.execute(Get(entry.key))
        assert isinstance(got, Object)
        body = encode_decision(dataclasses.replace(decode_decision(bytes(got.data), key=entry.key), ends={}))
        assert len(body) < len(got.data)
        log.store.execute(Delete((entry.key,)))
        log.store.execute(Put(entry.key, body, ABSENT, crc32c(body)))


def rebuilt(log: RemoteLog, **accept: bool) -> RebuildPlan:
    plan = plan_rebuild(log.store, TP, "test", **accept)
    rebuild(log.store, plan)
    assert check(None, log.store).errors == 0
    return plan


def refused(log: RemoteLog, why: str, *, accept_order: bool = False) -> CorruptionError:
    """Also where losses are accepted, and, unless this is about the order, where that is."""
    for accept_loss in (False, True):
        with pytest.raises(CorruptionError, match=why) as told:
            plan_rebuild(log.store, TP, "test", accept_loss=accept_loss)
    if not accept_order:
        with pytest.raises(CorruptionError, match=why) as told:
            plan_rebuild(log.store, TP, "test", accept_loss=True, accept_order=True)
        assert "--accept" not in told.value.hint
    return told.value


def test_without_a_copy_the_decisions_of_streams_tell_each_row(log: RemoteLog) -> None:
    for batch in range(1, 9):
        stage(log, [seal(batches(0, 10 + batch)), seal(batches(0, 5))], batch, "query" if batch % 3 else "other")
    before = root_of(log)
    lose(log)
    plan = rebuilt(log)
    assert (plan.copy_version, plan.found, plan.batches, plan.unproven) == (0, len(before.rows), 9, (0, 0))
    root = root_of(log)
    assert list(root.rows) == list(before.rows)
    assert (root.txns, root.lineage, root.writer.volume) == (before.txns, before.lineage, "spark")
    assert (root.start_offset, root.next_offset) == (0, before.next_offset)
    assert root.version > before.version + VERSION_STEP
    assert stage(log, [seal(batches(0, 7))], 9)[0].base == before.next_offset


def test_behind_a_copy_they_tell_what_was_committed_since(log: RemoteLog) -> None:
    keep_copy(log)
    for batch in range(1, 4):
        stage(log, [seal(batches(0, 20))], batch)
        stage(log, [seal(batches(0, 4))], 0, f"job-{batch:032x}")
    before = root_of(log)
    lose(log)
    plan = rebuilt(log)
    assert (plan.copy_version, plan.found, plan.batches) == (2, 6, 6)
    assert list(root_of(log).rows) == list(before.rows)
    assert root_of(log).txns == before.txns


@pytest.mark.parametrize("seed", range(12))
def test_whatever_sinks_did_it_is_exact_or_refused(log: RemoteLog, seed: int) -> None:
    """Three of them, at times side by side; with the order accepted all records are there, the proven ones in place."""
    rng, waiting, counts = random.Random(seed), dict[str, Decision](), dict.fromkeys("abc", 0)
    for _ in range(12):
        txn = rng.choice("abc")
        if txn in waiting:
            commit(log, waiting.pop(txn))
            continue
        decided = decide(log, [rng.choice([5, 5, 10, 20])], counts[txn], txn)
        counts[txn] += 1
        if rng.random() < 0.75:
            commit(log, decided)
        else:
            waiting[txn] = decided
    before = root_of(log)
    lose(log)
    with contextlib.suppress(CorruptionError):
        assert plan_rebuild(log.store, TP, "test").unproven == (0, 0)
    plan = rebuilt(log, accept_order=True)
    root = root_of(log)
    proven = plan.unproven[0] if plan.unproven[1] else before.next_offset
    assert [row for row in root.rows if row.next <= proven] == [row for row in before.rows if row.next <= proven]
    assert {(row.id_hi, row.id_lo) for row in before.rows} <= {(row.id_hi, row.id_lo) for row in root.rows}
    assert {row.next for row in before.rows if row.next > plan.unproven[1] > 0} <= {row.next for row in root.rows}
    assert [commit(log, decided) for decided in waiting.values()] == [-1] * len(waiting)


def test_two_side_by_side_are_refused_and_put_as_they_were_decided_if_that_is_asked_for(log: RemoteLog) -> None:
    both = [decide(log, [10], 0, "one"), decide(log, [20], 0, "two")]
    assert [commit(log, decided) for decided in reversed(both)] == [30, 50]
    stage(log, [seal(batches(0, 5))], 1)
    before = root_of(log)
    lose(log)
    error = refused(log, "batch 0 of one, batch 0 of two were decided side by side", accept_order=True)
    assert "begins at offset 30" in error.message
    assert "--accept-order puts it into the order of its decisions" in error.hint
    plan = rebuilt(log, accept_order=True)
    assert plan.unproven == (30, 65)
    assert [(row.base, row.next) for row in root_of(log).rows][2:] == [(30, 40), (40, 60), (60, 65)]
    assert root_of(log).txns == (("one", 0), ("two", 0), ("query", 1))
    assert before.next_offset == root_of(log).next_offset


def test_decisions_of_releases_before_tell_the_order_of_one_stream(log: RemoteLog) -> None:
    for batch in range(1, 5):
        stage(log, [seal(batches(0, 10 + batch))], batch)
    forget_ends(log)
    before = root_of(log)
    lose(log)
    assert rebuilt(log).unproven == (0, 0)
    assert list(root_of(log).rows) == list(before.rows)


def test_of_several_ids_decisions_of_releases_before_prove_nothing(log: RemoteLog) -> None:
    stage(log, [seal(batches(0, 10))], 0, "other")
    forget_ends(log)
    before = root_of(log)
    lose(log)
    refused(log, "are of several ids, and not all say where the log ended", accept_order=True)
    assert rebuilt(log, accept_order=True).unproven == (0, 40)
    assert list(root_of(log).rows) == list(before.rows)  # they came one after the other


def test_what_was_decided_and_not_committed_yet_is_there_once(log: RemoteLog) -> None:
    waits = decide(log, [5, 6], 1, "query")
    lose(log)
    assert rebuilt(log).batches == 2
    assert [(row.base, row.next) for row in root_of(log).rows][2:] == [(30, 35), (35, 41)]
    assert commit(log, waits) == -1
    assert root_of(log).next_offset == 41


def test_a_decision_of_before_that_nobody_saw_is_not_committed_under_the_new_root(log: RemoteLog) -> None:
    """It was swept, or came late: without a copy nothing tells whether its batch was there."""
    decision = decide(log, [5], 0, "late")
    log.store.execute(Delete((decision.key,)))
    lose(log)
    rebuilt(log)
    body = encode_decision(decision)
    log.store.execute(Put(decision.key, body, ABSENT, crc32c(body)))
    with pytest.raises(ConfigError, match="it is forgotten whether it was"):
        commit(log, decision)


def test_what_has_no_decision_and_is_older_than_those_are_kept_is_refused(log: RemoteLog) -> None:
    """A job that ended a month ago: its decision is swept. A younger one without has never been committed."""
    row = drive(log.store, upload_staged(seal(batches(0, 9)), "job", 0, TRUSTED), clock=log.clock, ids=log.ids)
    lose(log)
    assert plan_rebuild(log.store, TP, "test").batches == 1
    log.clock.advance(DECISION_KEPT_MS / 1000 - 1)
    assert plan_rebuild(log.store, TP, "test").batches == 1
    log.clock.advance(1)
    error = refused(log, "no kept copy and no decision names 1 segments of sinks")
    assert error.path_or_key == segment_key(log.topic_id, 0, row)
    assert "delete them here" in error.hint
    log.store.execute(Delete((segment_key(log.topic_id, 0, row), index_key(log.topic_id, 0, row))))
    assert rebuilt(log).root.next_offset == 30


def test_a_decision_that_cannot_be_read_is_refused_by_its_name(log: RemoteLog) -> None:
    stage(log, [seal(batches(0, 9))], 1)
    key = decision_key("query", 0)
    got = log.store.execute(Get(key))
    assert isinstance(got, Object)
    log.store.execute(Delete((key,)))
    log.store.execute(Put(key, bytes(got.data)[:-9], ABSENT))
    lose(log)
    assert refused(log, "checksum").path_or_key == key


def test_where_a_local_log_wrote_too_nothing_tells_when_it_was_handed_over(log: RemoteLog) -> None:
    log.upload(seal(batches(30, 50)))
    lose(log)
    assert "nothing tells when it was handed over" in refused(log, "a local log wrote the partition, too").message


@pytest.mark.parametrize("line", [{"orphans": 3}, {"entries": 2, "objects": 4}, None])
def test_without_a_copy_what_was_collected_may_have_been_anything(log: RemoteLog, line: dict[str, int] | None) -> None:
    """Of a sweep it is known: what it took was never committed."""
    body = json.dumps(line).encode() if line is not None else b"?"
    log.store.execute(Put(gc_audit_key(log.topic_id, 0, 2, "a" * 32), body, ABSENT))
    keep_copy(log)
    stage(log, [seal(batches(0, 9))], 1)
    lose(log)
    assert plan_rebuild(log.store, TP, "test").batches == 1  # the copy tells
    kept = drive(log.store, list_all(hist_prefix(log.topic_id, 0)), clock=log.clock)
    log.store.execute(Delete(tuple(entry.key for entry in kept)))
    if line == {"orphans": 3}:
        assert rebuilt(log).batches == 2
    else:
        refused(log, "objects were collected, and no copy of a root is left")


def test_an_audit_line_that_was_listed_and_is_gone_may_have_told_anything(log: RemoteLog) -> None:
    key, store = gc_audit_key(log.topic_id, 0, 2, "a" * 32), log.store
    store.execute(Put(key, json.dumps({"orphans": 3}).encode(), ABSENT))
    lose(log)

    class Forgets:
        url = store.url

        def execute(self, request: StoreRequest) -> Outcome:
            return Missing() if isinstance(request, Get) and request.key == key else store.execute(request)

        def close(self) -> None:
            """Nothing is open."""

    with pytest.raises(CorruptionError, match="objects were collected, and no copy of a root is left"):
        plan_rebuild(Forgets(), TP, "test")
    assert rebuilt(log).batches == 1


def test_what_is_decided_and_lost_is_a_hole_if_that_is_accepted(log: RemoteLog) -> None:
    middle = stage(log, [seal(batches(0, 9))], 1)[0]
    last = stage(log, [seal(batches(0, 11))], 2)[0]
    before = root_of(log)
    log.store.execute(Delete((segment_key(log.topic_id, 0, middle), index_key(log.topic_id, 0, middle))))
    lose(log)
    with pytest.raises(CorruptionError, match="offsets 30 to 39 are in no object"):
        plan_rebuild(log.store, TP, "test")
    log.store.execute(Delete((segment_key(log.topic_id, 0, last), index_key(log.topic_id, 0, last))))
    with pytest.raises(CorruptionError, match="the objects end at offset 30"):
        plan_rebuild(log.store, TP, "test")
    plan = rebuilt(log, accept_loss=True)
    assert (plan.lost, root_of(log).next_offset, root_of(log).txns) == (((30, 50),), 50, before.txns)


def test_what_was_merged_lies_where_its_batches_did(log: RemoteLog) -> None:
    stage(log, [seal(batches(0, 9))], 1)
    rewriter = Rewriter(log)
    old = rewriter.rows
    merged = rewriter.merge(old[:2])
    stage(log, [seal(batches(0, 4))], 2)
    log.store.execute(Delete(tuple(segment_key(log.topic_id, 0, row) for row in old[:2])))
    before = root_of(log)
    lose(log)
    rebuilt(log)
    assert list(root_of(log).rows) == list(before.rows)
    assert root_of(log).rows.row(0) == merged


def test_what_was_merged_of_batches_in_no_proven_order_cannot_be_accepted(log: RemoteLog) -> None:
    """It holds the one that came first, and nothing tells which that is: the other would be there twice or never."""
    for decision in reversed([decide(log, [10], 0, "one"), decide(log, [10], 0, "two")]):
        commit(log, decision)
    rewriter = Rewriter(log)
    rewriter.merge(rewriter.rows[1:3])
    lose(log)
    refused(log, "nothing tells which of them begins at offset 30", accept_order=True)
    with pytest.raises(CorruptionError, match="committed offsets 30 to 50, and a rewrite has 20 to 40") as told:
        plan_rebuild(log.store, TP, "test", accept_order=True)
    assert "--accept" not in told.value.hint


def test_a_rewrite_that_lies_otherwise_is_of_another_history(log: RemoteLog) -> None:
    upload = upload_segment(
        seal(batches(10, 30)),
        topic_id=log.topic_id,
        partition=0,
        claim_epoch=1,
        capabilities=TRUSTED,
        role=Role.MAINTAINER,
    )
    drive(log.store, upload, clock=log.clock, ids=log.ids)
    lose(log)
    refused(log, "a rewrite has offsets 10 to 30, and by the decisions of sinks a segment of theirs has 0 to 20")


def put_back(log: RemoteLog, older: Root) -> None:
    lose(log)
    body = encode_root(older)
    log.store.execute(Put(root_key(log.topic_id, 0), body, ABSENT, crc32c(body)))


def test_behind_an_older_root_the_decisions_tell_what_it_has_lost(log: RemoteLog) -> None:
    older = root_of(log)
    for batch in (1, 2):
        stage(log, [seal(batches(0, 9))], batch)
    before = root_of(log)
    drive(log.store, copy_root(dataclasses.replace(before, version=255)), clock=log.clock, ids=log.ids)
    put_back(log, older)
    kept = drive(log.store, list_all(hist_prefix(log.topic_id, 0)), clock=log.clock)
    body = b"damaged"
    log.store.execute(Delete((kept[0].key,)))
    log.store.execute(Put(kept[0].key, body, ABSENT, crc32c(body)))
    plan = rebuilt(log)
    assert (plan.unread, plan.copy_version, plan.batches) == (1, 2, 2)
    assert list(root_of(log).rows) == list(before.rows)


def test_where_sinks_went_on_under_an_older_root_nothing_is_proven(log: RemoteLog) -> None:
    """What the lost root had at offset 30 is behind nothing that is there."""
    older = root_of(log)
    stage(log, [seal(batches(0, 9))], 1)
    keep_copy(log)
    put_back(log, older)
    stage(log, [seal(batches(0, 9))], 0, "job")
    refused(log, "batch 1 of query was decided after version 2, and version 3 was put back")


def test_sinks_that_went_on_under_an_older_root_are_not_moved(log: RemoteLog) -> None:
    """What they committed there has other offsets than it would get behind the newer copy."""
    older = root_of(log)
    for batch in (1, 2):
        stage(log, [seal(batches(0, 9))], batch)
    keep_copy(log)
    put_back(log, older)
    (row,) = stage(log, [seal(batches(0, 9))], 0, "job")
    with pytest.raises(CorruptionError, match="was appended since the root was put back") as told:
        plan_rebuild(log.store, TP, "test")
    assert (told.value.path_or_key, told.value.offset) == (segment_key(log.topic_id, 0, row), 30)


def test_a_decision_says_where_the_log_ended(log: RemoteLog) -> None:
    target = (log.topic_id, 0)
    decision = decide(log, [10], 7, "one")
    assert (dict(decision.ends), dict(decision.seen)) == ({target: 30}, {target: 2})
    got = log.store.execute(Get(decision.key))
    assert isinstance(got, Object)
    assert decode_decision(bytes(got.data), key=decision.key) == decision
    for ends in ({}, {target: 30}):
        told = dataclasses.replace(decision, ends=ends)
        assert decode_decision(encode_decision(told), key=decision.key) == told


def test_ends_that_are_not_as_many_as_partitions_are_damage(log: RemoteLog) -> None:
    decision = decide(log, [10], 7, "one")
    body = encode_decision(decision)
    assert body.count(b'"ends":[30]') == 1
    for wrong in (b'"ends":[]', b'"ends":[-2]', b'"ends":[30,1]'):
        longer = body.replace(b'"ends":[30]', wrong.ljust(11))[:-4]
        at = int.from_bytes(longer[8:12], "little") + len(wrong.ljust(11)) - 11
        broken = longer[:8] + at.to_bytes(4, "little") + longer[12:]
        broken += crc32c(broken).to_bytes(4, "little")
        with pytest.raises(CorruptionError, match="ends"):
            decode_decision(broken, key=decision.key)


def bases(rows: list[Row]) -> list[int]:
    return [row.base for row in rows]


def test_rows_of_a_batch_keep_the_order_of_its_decision(log: RemoteLog) -> None:
    lengths = [9, 2, 30, 4]
    rows = stage(log, [seal(batches(0, length)) for length in lengths], 1)
    lose(log)
    rebuilt(log)
    assert list(root_of(log).rows)[2:] == rows
    assert bases(rows) == [30 + at for at in itertools.accumulate([0, *lengths[:-1]])]
