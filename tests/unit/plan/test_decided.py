"""The order of what sinks had decided, told by decisions alone: exact, or not told."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from tiered.errors import CorruptionError
from tiered.format.decision import UNTOLD
from tiered.format.keys import FLAG_STAGED, Role, split_uid, staged_uid
from tiered.format.root import Root
from tiered.model import Row
from tiered.plan.commit import Stamp, create_root
from tiered.plan.decided import SIDE_BY_SIDE, Decided, in_order, not_in, replayed
from tiered.plan.rebuild import VERSION_STEP

STAMP = Stamp("test", 1_000, Role.WRITER, 0, "test")
EMPTY = create_root(UUID(int=1), 0, "flights", STAMP)


def decided(txn: str, batch: int, length: int, seen: int, end: int = UNTOLD) -> Decided:
    high, low = split_uid(staged_uid(txn, batch, 0))
    row = Row(0, length, 5, 7, 100, 1, high, low, 10, 0, length, FLAG_STAGED, -1)
    return Decided(txn, batch, (row,), seen, end)


def names(batches: tuple[Decided, ...]) -> list[str]:
    return [f"{each.txn}{each.batch}" for each in batches]


class History:
    """Sinks that decide and commit in one partition, each batch after the one before, and others that commit."""

    def __init__(self, seed: int, ids: int) -> None:
        self._rng = random.Random(seed)
        self.version, self.end = 1, 0
        self.decisions: list[Decided] = []
        self.committed: list[Decided] = []
        waiting: dict[str, Decided] = {}
        for _ in range(self._rng.randrange(2, 14)):
            txn = self._rng.choice("abcd"[:ids])
            if self._rng.random() < 0.2:
                self.version += 1  # a maintainer's claim
            elif txn in waiting:
                self._commit(waiting.pop(txn))
            else:
                batch = sum(each.txn == txn for each in self.decisions)
                waiting[txn] = decided(txn, batch, self._rng.choice([1, 1, 2, 3, 5]), self.version, self.end)
                self.decisions.append(waiting[txn])
                if self._rng.random() < 0.7:  # most commit at once
                    self._commit(waiting.pop(txn))
        self._rng.shuffle(self.decisions)

    def _commit(self, batch: Decided) -> None:
        self.version, self.end = self.version + 1, self.end + batch.length
        self.committed.append(batch)


@pytest.mark.parametrize("ids", [1, 2, 3, 4])
def test_what_is_proven_is_what_was_committed(ids: int) -> None:
    told = 0
    for seed in range(600):
        history = History(seed, ids)
        if not history.decisions:
            continue
        order = in_order(EMPTY, history.decisions, fresh=True)
        assert sorted(names(order.batches)) == sorted(names(tuple(history.decisions)))
        proven, committed = names(order.batches[: order.proven]), names(tuple(history.committed))
        assert proven[: len(committed)] == committed[: len(proven)]
        assert (order.proven == len(order.batches)) == (not order.why)
        if not order.why:
            assert len(proven) - len(committed) in (0, 1)  # the last may wait for its commit
            told += 1
    assert told > (550 if ids == 1 else 40)


def test_of_one_id_a_decision_that_is_gone_is_missed() -> None:
    """Of several what waits for its commit may have the same length: whether one is gone, what is staged tells."""
    refused = 0
    for seed in range(600):
        history = History(seed, 1)
        for gone in history.committed[:-1]:
            left = [each for each in history.decisions if each is not gone]
            with pytest.raises(CorruptionError, match="do not lead from offset"):
                in_order(EMPTY, left, fresh=True)
            refused += 1
    assert refused > 1000


def test_of_one_id_versions_are_enough() -> None:
    batches = [decided("q", 1, 5, 4), decided("q", 0, 3, 1), decided("q", 2, 2, 9)]
    order = in_order(EMPTY, batches, fresh=True)
    assert (names(order.batches), order.proven, order.why) == (["q0", "q1", "q2"], 3, "")
    root, rows = replayed(EMPTY, order.batches, STAMP)
    assert tuple(root.rows) == rows
    assert [(row.base, row.next, row.leader_epoch, row.claim_epoch) for row in rows] == [
        (0, 3, 0, 1),
        (3, 8, 0, 1),
        (8, 10, 0, 1),
    ]
    assert (root.txns, root.txn_versions, root.writer.volume, root.version) == ((("q", 2),), (4,), "spark", 4)


def test_of_several_ids_they_are_not() -> None:
    """A maintainer's claim may have made the version that the second has seen."""
    order = in_order(EMPTY, [decided("a", 0, 5, 1), decided("b", 0, 5, 2)], fresh=True)
    assert (names(order.batches), order.proven) == (["a0", "b0"], 0)
    assert "batch 0 of a, batch 0 of b are of several ids" in order.why


def test_an_end_that_one_decision_does_not_tell_leaves_all_of_several_ids_unproven() -> None:
    batches = [decided("a", 0, 5, 1), decided("b", 0, 5, 2, 5), decided("b", 1, 5, 3, 10)]
    assert in_order(EMPTY, batches, fresh=True).proven == 0


def test_batches_side_by_side_are_told_apart_by_what_one_of_them_saw_later() -> None:
    both = [decided("a", 0, 4, 1, 0), decided("b", 0, 4, 1, 0)]
    order = in_order(EMPTY, both, fresh=True)
    assert (order.proven, names(order.batches)) == (0, ["a0", "b0"])
    assert "decided side by side, and nothing tells which of them begins at offset 0" in order.why
    order = in_order(EMPTY, [*both, decided("b", 1, 2, 2, 4)], fresh=True)
    assert (order.proven, names(order.batches)[0]) == (1, "b0")


def test_of_too_many_side_by_side_nothing_is_proven() -> None:
    many = [decided(f"j{number:02}", 0, 1 << number, 1, 0) for number in range(SIDE_BY_SIDE + 1)]
    order = in_order(EMPTY, [*many, decided("z", 0, 1, 2, 1)], fresh=True)
    assert order.proven == 0
    assert "and 9 more were decided side by side" in order.why


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        ([decided("q", 0, 3, 1, 0), decided("q", 2, 5, 4, 9)], "do not lead from offset 3 to 9"),
        ([decided("a", 0, 3, 1, 0), decided("b", 0, 5, 4, 9)], "do not lead from offset 0 to 9"),
        ([decided("a", 0, 3, 1, 7), decided("b", 0, 5, 4, 10)], "do not lead from offset 0 to 7"),
        ([decided("q", 0, 3, 1), decided("q", 1, 5, 1)], "batch 1 of q was decided after version 1, batch 0 after 1"),
        ([decided("q", 0, 3, 1, 0), decided("q", 1, 5, 2, 0)], "an older root was put back between them"),
        ([decided("q", 0, 3, 3)], "where the log ended then nothing tells"),
        ([decided("q", 0, 3, 1), decided("q", 1, 3, VERSION_STEP + 1)], "the catalog was made anew between versions"),
    ],
)
def test_decisions_that_contradict_each_other_are_refused(batches: list[Decided], why: str) -> None:
    with pytest.raises(CorruptionError, match=why):
        in_order(EMPTY, batches, fresh=True)


def copy_of(*batches: Decided) -> Root:
    return replayed(EMPTY, batches, STAMP)[0]


def test_behind_a_copy_what_it_has_not_committed_is_told() -> None:
    first, waits, second = decided("q", 0, 3, 1, 0), decided("z", 0, 4, 1, 0), decided("q", 1, 5, 2, 3)
    copy = copy_of(first)
    left = not_in(copy, [first, waits, second], set())
    assert names(tuple(left)) == ["z0", "q1"]
    assert names(tuple(not_in(copy, [waits], set()))) == ["z0"]
    order = in_order(copy, [waits])
    assert (order.proven, order.why) == (1, "")
    assert in_order(copy, left).proven == 0  # of both the log ended before or at 3
    with pytest.raises(CorruptionError, match="do not lead from offset 3 to 7"):
        in_order(copy, [decided("z", 0, 4, 5, 7)])


@pytest.mark.parametrize(("seen", "end"), [(2, UNTOLD), (1, 3), (1, 0)])
def test_behind_a_root_that_was_put_back_only_what_saw_its_end_is_told(seen: int, end: int) -> None:
    older = copy_of(decided("q", 0, 3, 1, 0))
    assert in_order(older, [decided("q", 1, 5, 2, 3)], older=True).proven == 1
    batches = [decided("q", 1, 5, seen, end)]
    assert in_order(older, batches).proven == 1
    with pytest.raises(CorruptionError, match="and version 2 was put back"):
        in_order(older, batches, older=True)


def test_a_copy_of_another_history_is_refused() -> None:
    """It has passed the batch, which was decided when the root was newer: that root is lost, and the copy forked."""
    copy = copy_of(decided("q", 7, 3, 1))
    with pytest.raises(CorruptionError, match="an older root was put back, and sinks went on under it"):
        not_in(copy, [decided("q", 4, 3, 2)], set())


def test_what_a_copy_has_forgotten_is_refused_while_it_is_there() -> None:
    copy = copy_of(*(decided(f"s{number}", 0, 1, number + 1) for number in range(70)))
    forgotten = decided("s0", 0, 1, 1)
    ids = {(row.id_hi, row.id_lo) for row in forgotten.rows}
    assert not_in(copy, [forgotten], set()) == []
    with pytest.raises(CorruptionError, match="whether batch 0 of s0 is committed is forgotten in version 71"):
        not_in(copy, [forgotten], ids)


def test_what_no_sink_may_have_committed_is_refused() -> None:
    with pytest.raises(CorruptionError, match=r"cannot have been committed behind version 2: .*already committed"):
        replayed(copy_of(decided("q", 1, 3, 1)), [decided("q", 0, 3, 1)], STAMP)
