"""A stop and a fault at each effect of a transaction, and of its recovery: all of it is visible, or nothing."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from tests.support.faulty_files import PowerCut, on_nth
from tests.unit.local.transactions.bench import A, B, TxnBench
from tiered.errors import (
    CommitUnknownError,
    MarkersPendingError,
    TieredError,
)
from tiered.model import NewRecord
from tiered.plan.producer import ProducerStamp

STATE_DIRECTORY = "__transaction_state-0"


@pytest.fixture
def bench(tmp_path: Path) -> TxnBench:
    return TxnBench(tmp_path / "log")


def outcome(bench: TxnBench) -> tuple[bool, bool]:
    """Whether the second transaction is visible, in each of its partitions."""
    first, second = bench.committed(A), bench.committed(B)
    assert first[:1] == second[:1] == [b"first"]
    return first[1:] == [b"second"], second[1:] == [b"second"]


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_stop_at_any_effect_leaves_all_of_it_or_nothing(tmp_path: Path, power: bool, commit: bool) -> None:
    seen: set[bool] = set()
    for n in range(1, 200):
        bench = TxnBench(tmp_path / str(n))
        bench.transact("x", b"first")
        bench.log.checkpoint()
        bench.files.fail = on_nth(n, "*", PowerCut)
        done = False
        try:
            bench.transact("x", b"second", commit=commit)
            done = True
        except PowerCut:
            pass
        bench.files.fail = None
        bench.kill()
        if power:
            bench.files.cut_power(random.Random(n))
        bench.open()
        visible = outcome(bench)
        assert visible[0] == visible[1], f"effect {n}: torn apart"
        assert visible[0] <= commit
        assert visible[0] or not (done and commit), f"effect {n}: a commit that returned was lost"
        seen.add(visible[0])
        assert bench.stuck() == []
        bench.transact("x", b"third")
        assert bench.committed(A)[-1] == bench.committed(B)[-1] == b"third"
        bench.log.close()
        shutil.rmtree(bench.directory)
        if done:
            break
    assert n > 8
    assert seen == ({False, True} if commit else {False})


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_stop_at_any_effect_of_the_recovery_is_recovered_again(tmp_path: Path, power: bool) -> None:
    for n in range(1, 300):
        bench = TxnBench(tmp_path / str(n))
        bench.transact("x", b"first")
        producer = bench.log.transactions.begin("x")
        for tp in (A, B):
            bench.log.transactions.join(producer, [tp])
            bench.log.partition(tp).append_as_producer([NewRecord(b"second")], ProducerStamp(*producer[1:], 0))
        bench.files.fail = lambda name, path: errno.EIO if _is_marker(path, name) else 0
        with pytest.raises(MarkersPendingError, match="PREPARE_COMMIT"):
            bench.log.transactions.end(producer, commit=True)
        bench.files.fail = None
        bench.kill()
        bench.files.fail = on_nth(n, "*", PowerCut)
        done = False
        try:
            bench.open()
            done = True
        except PowerCut:
            pass
        bench.files.fail = None
        if not done:
            if power:
                bench.files.cut_power(random.Random(n))
            bench.directory.joinpath(".lock").unlink()  # the handle of the dead opening is still held by this process
            bench.open()
        assert outcome(bench) == (True, True), f"effect {n}"
        assert (bench.stuck(), bench.states()) == ([], {"x": "COMPLETE_COMMIT"})
        bench.kill()
        shutil.rmtree(bench.directory)
        if done:
            break
    assert n > 20


def _is_marker(path: Path, name: str) -> bool:
    return name == "write" and path.suffix == ".log" and path.parent.name in {"orders-0", "orders-1"}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_fault_at_any_effect_is_a_clear_error_and_never_half_a_transaction(tmp_path: Path, code: int) -> None:
    for n in range(1, 200):
        bench = TxnBench(tmp_path / str(n))
        bench.transact("x", b"first")
        bench.files.fail = on_nth(n, "*", code)
        failed: TieredError | None = None
        try:
            bench.transact("x", b"second")
        except TieredError as error:
            failed = error
        bench.files.fail = None
        bench.kill()
        bench.open()
        visible = outcome(bench)
        assert visible[0] == visible[1]
        if failed is None or isinstance(failed, MarkersPendingError):
            assert visible[0]
        elif not isinstance(failed, CommitUnknownError):
            assert not visible[0]
        assert bench.stuck() == []
        bench.kill()
        shutil.rmtree(bench.directory)
        if failed is None and n > 20:
            break
    assert n > 8


def test_a_marker_that_is_owed_is_tried_again_and_the_others_are_not_repeated(bench: TxnBench) -> None:
    producer = bench.log.transactions.begin("x")
    bench.log.transactions.join(producer, [A, B])
    for tp in (A, B):
        bench.log.partition(tp).append_as_producer([NewRecord(b"v")], ProducerStamp(*producer[1:], 0))
    bench.files.fail = lambda name, path: errno.ENOSPC if name == "write" and path.parent.name == "orders-1" else 0
    with pytest.raises(MarkersPendingError, match="orders-1"):
        bench.log.transactions.end(producer, commit=True)
    for _ in range(2):
        with pytest.raises(MarkersPendingError):
            bench.log.tick()
    assert [bench.log.partition(tp).positions().end_offset for tp in (A, B)] == [2, 1]
    bench.files.fail = None
    bench.log.tick()
    assert [bench.log.partition(tp).positions().end_offset for tp in (A, B)] == [2, 2]
    assert (bench.stuck(), bench.states()) == ([], {"x": "COMPLETE_COMMIT"})


def test_a_completion_that_cannot_be_noted_repeats_no_marker(bench: TxnBench) -> None:
    bench.transact("x", b"1")

    def fail(name: str, path: Path) -> int:
        data = path.read_bytes() if name == "write" and path.parent.name == STATE_DIRECTORY else b""
        return errno.ENOSPC if data.count(b"orders") == 3 * 2 else 0  # after the decision of the second transaction

    bench.files.fail = fail
    bench.transact("x", b"2")
    ends = [bench.log.partition(tp).positions().end_offset for tp in (A, B)]
    assert bench.states() == {"x": "PREPARE_COMMIT"}
    with pytest.raises(TieredError, match="ENOSPC"):
        bench.log.transactions.begin("x")
    bench.log.tick()
    bench.files.fail = None
    bench.log.tick()
    assert [bench.log.partition(tp).positions().end_offset for tp in (A, B)] == ends == [4, 4]
    assert bench.states() == {"x": "COMPLETE_COMMIT"}
