"""What a sink puts into a catalog, as pure functions of the root."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from uuid import UUID

import pytest

from tests.unit.plan.staging import staged
from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, FLAG_STAGED, Role
from tiered.format.root import STATE_DELETING, TXNS_LIMIT, Root, decode_root, encode_root
from tiered.model import EpochEntry
from tiered.plan.commit import AppendIntent, ClaimIntent, Stamp, create_root
from tiered.plan.invariants import check_root
from tiered.plan.ownership import Refusal, RefusalReason, VolumeProof
from tiered.plan.sink_commit import HandoverIntent, StageIntent, is_owner, once_id

TOPIC_ID = UUID(int=9)


def stamp(number: int, *, epoch: int = 1, role: Role = Role.WRITER) -> Stamp:
    return Stamp(f"c{number}", 1000 + number, role, epoch, "driver:1")


def empty() -> Root:
    return create_root(TOPIC_ID, 0, "t", stamp(0))


def owned(volume: str = "v1") -> Root:
    root = ClaimIntent(Role.WRITER, "h", VolumeProof(volume, True, 0), "tok").apply(empty(), stamp(1))
    assert isinstance(root, Root)
    return root


def applied(root: Root, intent: StageIntent | HandoverIntent, number: int = 2) -> Root:
    after = intent.apply(root, stamp(number))
    assert isinstance(after, Root), after
    assert check_root(after, root) == []
    assert decode_root(encode_root(after), key=after.key) == after
    return after


def refused(root: Root, intent: StageIntent | HandoverIntent) -> Refusal:
    refusal = intent.apply(root, stamp(99))
    assert isinstance(refusal, Refusal)
    return refusal


def test_bases_are_given_in_order_behind_the_end_and_an_unclaimed_partition_is_taken() -> None:
    rows = (staged(3, 1), staged(5, 2))
    root = applied(empty(), StageIntent("q", 0, rows))
    assert [(row.base, row.next, row.claim_epoch, row.leader_epoch) for row in root.rows] == [
        (0, 3, 1, 0),
        (3, 8, 1, 0),
    ]
    assert [row._replace(base=0, next=row.records, claim_epoch=0, leader_epoch=-1) for row in root.rows] == list(rows)
    assert (root.next_offset, root.txns, root.txn_versions, root.version) == (8, (("q", 0),), (2,), 2)
    assert (root.writer.volume, root.writer.epoch, root.writer.seq, root.commit.op) == ("spark", 1, 0, "stage")
    assert root.lineage == (EpochEntry(0, 0),)
    after = applied(root, StageIntent("q", 1, (staged(2, 3, batch=1),)), 3)
    assert (after.next_offset, after.txns, after.txn_versions) == (10, (("q", 1),), (3,))
    assert (after.writer.epoch, after.writer.seq, after.lineage) == (1, 1, root.lineage)


def test_what_is_committed_is_not_committed_again_whoever_owns_the_partition_now() -> None:
    root = applied(empty(), StageIntent("q", 4, (staged(3, 1, batch=4),)))
    for batch in (3, 4):
        again = refused(root, StageIntent("q", batch, (staged(3, 9, batch=batch),)))
        assert (again.reason, "already committed" in again.message) == (RefusalReason.NOTHING, True)
    local = applied(root, HandoverIntent("local"), 3)
    assert refused(local, StageIntent("q", 4, (staged(3, 1, batch=4),))).reason is RefusalReason.NOTHING
    assert refused(local, StageIntent("q", 5, (staged(3, 1, batch=5),))).reason is RefusalReason.FENCED


def test_a_local_log_and_sinks_keep_each_other_out_until_a_handover() -> None:
    root = owned()
    refusal = refused(root, StageIntent("q", 0, (staged(3, 1),)))
    assert refusal.reason is RefusalReason.FENCED
    assert "tiered topic transfer t spark" in refusal.hint
    spark = applied(root, HandoverIntent("spark"))
    assert (spark.writer.epoch, spark.lineage[-1].epoch, is_owner(spark, "spark")) == (2, 1, True)
    assert refused(spark, HandoverIntent("spark")).reason is RefusalReason.NOTHING
    assert isinstance(AppendIntent((), "a").apply(spark, stamp(3, epoch=1)), Refusal)  # the log's claim is fenced
    for empty_log in (True, False):
        claim = ClaimIntent(Role.WRITER, "h", VolumeProof("v1", empty_log, 9, "tok"), "tok2").apply(spark, stamp(3))
        assert isinstance(claim, Refusal)
        assert "tiered topic transfer t local" in claim.message
    staged_root = applied(spark, StageIntent("q", 0, (staged(3, 1),)), 3)
    assert [row.leader_epoch for row in staged_root.rows] == [1]
    local = applied(staged_root, HandoverIntent("local"), 4)
    assert (is_owner(local, "local"), is_owner(local, "spark")) == (True, False)
    old = ClaimIntent(Role.WRITER, "h", VolumeProof("v1", False, 0, "tok"), "t").apply(local, stamp(5))
    assert isinstance(old, Refusal)
    assert "rejoin" in old.hint
    fresh = ClaimIntent(Role.WRITER, "h", VolumeProof("v2", True, 0), "t").apply(local, stamp(5))
    assert isinstance(fresh, Root)
    assert check_root(fresh, local) == []
    assert (fresh.writer.volume, fresh.writer.epoch, fresh.lineage[-1]) == ("v2", 4, EpochEntry(2, 3))


def test_an_untouched_partition_handed_back_begins_where_the_first_log_begins() -> None:
    root = applied(applied(empty(), HandoverIntent("spark")), HandoverIntent("local"), 3)
    claim = ClaimIntent(Role.WRITER, "h", VolumeProof("v", False, 50, start_offset=40), "t").apply(root, stamp(4))
    assert isinstance(claim, Root)
    assert (claim.start_offset, claim.next_offset) == (40, 40)


def test_a_rebuilt_catalog_and_one_that_is_being_deleted_take_no_sink() -> None:
    intent = StageIntent("q", 0, (staged(3, 1),))
    rebuilt = dataclasses.replace(empty(), next_offset=50, start_offset=50)
    assert "rebuilt" in refused(rebuilt, intent).message
    deleting = dataclasses.replace(empty(), state=STATE_DELETING)
    assert refused(deleting, intent).reason is RefusalReason.STATE
    assert refused(deleting, HandoverIntent("spark")).reason is RefusalReason.STATE


BROKEN: list[Mapping[str, int]] = [
    {"base": 1}, {"next": 0}, {"flags": 0}, {"flags": FLAG_STAGED | FLAG_MAINTAINER},
    {"flags": FLAG_STAGED | FLAG_HOLE},
    {"size": 0}, {"idx_len": 0}, {"crc": -1}, {"records": -1}, {"min_ts": 9}, {"claim_epoch": 1}, {"reserved": 1},
    {"id_hi": 4}, {"id_lo": 1 << 40}, {"flags": FLAG_STAGED | 0x10},
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_rows_that_no_task_of_the_batch_staged_are_refused(broken: Mapping[str, int]) -> None:
    rows = (staged(3, 1), staged(3, 2, **broken))
    refusal = refused(empty(), StageIntent("q", 0, rows))
    assert refusal.reason is RefusalReason.INVALID
    assert "staged segment 1" in refusal.message


def test_other_flaws_of_a_batch() -> None:
    assert refused(empty(), StageIntent("q", 0, ())).reason is RefusalReason.INVALID
    assert "twice" in refused(empty(), StageIntent("q", 0, (staged(3, 1), staged(4, 1)))).message
    root = applied(empty(), StageIntent("q", 0, (staged(3, 1),)))
    forgot = dataclasses.replace(root, txns=(), txn_versions=())
    assert "twice" in refused(forgot, StageIntent("q", 0, (staged(3, 1),))).message
    assert (
        "its offsets would exceed"
        in refused(empty(), StageIntent("q", 0, (staged(2**62, 1), staged(2**62, 2)))).message
    )


def test_a_batch_that_may_be_among_the_forgotten_ones_is_refused() -> None:
    root = applied(empty(), StageIntent("first", 0, (staged(1, 1, "first"),), seen=1))  # version 2
    for number in range(TXNS_LIMIT):
        txn = f"other-{number}"
        root = applied(root, StageIntent(txn, 0, (staged(1, number, txn),), seen=1), 3 + number)
    assert (len(root.txns), root.txns[0], root.txns_floor) == (TXNS_LIMIT, ("other-0", 0), 2)
    again = StageIntent("first", 0, (staged(1, 1, "first"),), seen=1)
    assert "may have been committed" in refused(root, again).message
    # Decided when version 2 was there already: it cannot be what version 2 committed.
    assert applied(root, dataclasses.replace(again, seen=2, rows=(staged(1, 7, "first"),)), 90).next_offset == 66


def once(number: int) -> str:
    return once_id(f"{number:032x}")


def test_writes_do_not_make_a_stream_forgotten() -> None:
    root = applied(empty(), StageIntent("stream", 5, (staged(1, 1, "stream", 5),), seen=1))  # version 2
    for number in range(10 * TXNS_LIMIT):
        txn = once(number)
        root = applied(root, StageIntent(txn, 0, (staged(1, number, txn),), seen=root.version), 3 + number)
    assert (len(root.txns), root.txns[0], root.txns_floor) == (TXNS_LIMIT, ("stream", 5), 0)
    # Decided before all of these, and committed now: what became of the stream's last batch is known.
    stood_still = StageIntent("stream", 6, (staged(1, 7, "stream", 6),), seen=2)
    assert applied(root, stood_still, 9000).last_batch("stream") == 6
    assert refused(root, dataclasses.replace(stood_still, batch=5)).reason is RefusalReason.NOTHING
    # One of the writes that are forgotten, tried again: it is refused, as is one that never came.
    for number in (0, 9 * TXNS_LIMIT, 10**6):
        late = StageIntent(once(number), 0, (staged(1, 8, once(number)),), seen=2)
        assert "may have been committed" in refused(root, late).message
    # A new stream whose first batch was decided before them is none of them.
    assert applied(root, StageIntent("new", 0, (staged(1, 9, "new"),), seen=2), 9001).last_batch("new") == 0


def test_random_writes_and_streams_are_committed_once_or_refused() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(20):
        root, committed, waiting = empty(), set[tuple[str, int]](), list[StageIntent]()
        streams, named = dict[str, int](), rng.choice([3, 40, 100])
        for step in range(400):
            if waiting and rng.random() < 0.3:
                intent = rng.choice(waiting)  # an answer was lost, or its driver stood still
            else:
                name = once(rng.getrandbits(64)) if rng.random() < 0.6 else f"s{rng.randrange(named)}"
                streams[name] = streams.get(name, -1) + 1
                intent = StageIntent(
                    name, streams[name], (staged(1, step, name, streams[name]),), seen=rng.randint(1, root.version)
                )
                waiting = [*waiting, intent][-30:]
                if rng.random() < 0.2:
                    continue
            outcome = intent.apply(root, stamp(1 + step))
            key = (intent.txn, intent.batch)
            if isinstance(outcome, Root):
                assert check_root(outcome, root) == []
                assert key not in committed, key
                committed.add(key)
                root = outcome
            elif outcome.reason is RefusalReason.NOTHING:
                assert root.last_batch(intent.txn) >= intent.batch
            else:
                assert "may have been committed" in outcome.message
                assert root.last_batch(intent.txn) < 0
                assert intent.seen < root.version
