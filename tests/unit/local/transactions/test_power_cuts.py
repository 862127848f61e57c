"""Power cuts in the middle of many transactions; each file loses its own part of what was not fsynced.

The state log may lose its tail while partitions keep theirs, because a neighbour's flush made them durable.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.faulty_files import PowerCut, on_nth
from tests.unit.local.transactions.bench import A, B, C, TxnBench
from tiered.local.transactions.coordinator import TxnProducer
from tiered.model import NewRecord, TopicPartition
from tiered.plan.producer import ProducerStamp

LIVES = 4


class Run:
    """Numbers the transactions; each writes its number into some partitions."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.bench = TxnBench(directory)
        self.dice = random.Random(seed)
        self.written: dict[int, set[TopicPartition]] = {}
        self.visible: set[int] = set()
        self.doubtful: set[int] = set()
        self.open: dict[int, tuple[TxnProducer, dict[TopicPartition, int]]] = {}

    def step(self) -> None:
        dice, log = self.dice, self.bench.log
        kind = dice.choices(("begin", "append", "end", "flush", "plain", "roll"), (20, 50, 15, 8, 5, 2))[0]
        tp = dice.choice((A, B, C))
        if kind == "flush":
            log.partition(tp).flush()
        elif kind == "plain":
            log.partition(tp).append([NewRecord(b"0")])
        elif kind == "roll":
            log.partition(tp).roll()
        elif kind == "begin" or not self.open:
            self.begin(f"x{dice.randrange(3)}")
        elif kind == "append":
            self.append(dice.choice(list(self.open)), tp)
        else:
            self.end(dice.choice(list(self.open)), commit=dice.random() < 0.7)

    def begin(self, name: str) -> None:
        self.open = {n: txn for n, txn in self.open.items() if txn[0].transactional_id != name}
        producer = self.bench.log.transactions.begin(name, self.dice.choice((60_000, 50_000)))
        number = len(self.written) + 1
        self.open[number], self.written[number] = (producer, {}), set()

    def append(self, number: int, tp: TopicPartition) -> None:
        producer, sequences = self.open[number]
        self.written[number].add(tp)
        self.bench.log.transactions.join(producer, [tp])
        stamp = ProducerStamp(producer.producer_id, producer.producer_epoch, sequences.get(tp, 0))
        self.bench.log.partition(tp).append_as_producer([NewRecord(b"%d" % number)], stamp)
        sequences[tp] = sequences.get(tp, 0) + 1

    def end(self, number: int, *, commit: bool) -> None:
        producer, _ = self.open.pop(number)
        if commit:
            self.doubtful.add(number)
        self.bench.log.transactions.end(producer, commit=commit)
        if commit:
            self.doubtful.discard(number)
            self.visible.add(number)

    def live(self) -> None:
        """Some steps, a power cut in the middle of one, the next open."""
        self.bench.files.fail = on_nth(self.dice.randrange(1, 300), "*", PowerCut)
        try:
            for _ in range(self.dice.randrange(5, 60)):
                self.step()
        except PowerCut:
            pass
        self.open.clear()
        self.bench.files.fail = None
        self.bench.kill()
        self.bench.files.cut_power(self.dice)
        self.bench.open()

    def check(self) -> None:
        assert self.bench.stuck() == []
        assert all(state.startswith(("COMPLETE", "EMPTY")) for state in self.bench.states().values())
        seen = {tp: {int(value) for value in self.bench.committed(tp)} for tp in (A, B, C)}
        for number, wanted in self.written.items():
            found = {tp for tp in wanted if number in seen[tp]}
            assert found in (wanted, set()), f"transaction {number} is torn apart"
            if wanted:
                assert number not in self.visible or found, f"transaction {number} was lost"
                assert not found or number in self.visible | self.doubtful, f"transaction {number} was never committed"
            if found:
                self.visible.add(number)
        self.doubtful.clear()


@pytest.mark.parametrize("seed", [19, 25, 30, 41, 45, 69, 72, 81, 87, 90, 171, *range(200, 210)])
def test_whatever_is_lost_each_transaction_is_wholly_there_or_not_at_all(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path / "log", seed)
    for _ in range(LIVES):
        run.live()
        run.check()
    run.bench.log.close()
