"""Processes that write into a broker's directories and are killed: ``python -m ... WHAT DIRECTORY ...``.

``kinds`` ends in the middle of a compaction, when the old segments have lost their names and the new ones have not got
theirs. ``transactions`` ends when the decision to commit is on disk and no marker is. Nothing was closed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.integration.servers.commands import ROOT
from tests.integration.servers.kafka_desk import Desk
from tests.integration.servers.kafka_kinds import KINDS
from tests.integration.servers.kafka_view import now_clock, open_for_writing
from tiered.format.coordinator_records import TRANSACTION_STATE_TOPIC
from tiered.format.local_names import DELETED_SUFFIX
from tiered.local.disk.files import PosixFiles
from tiered.model import NewRecord, TopicPartition
from tiered.plan.producer import ProducerStamp

TXN = (TopicPartition("txn", 0), TopicPartition("txn", 1))
UNDECIDED, DECIDED = "undecided", "decided"
VICTIM = TopicPartition("compacted", 0)


class DeadlyFiles(PosixFiles):
    """The real disk, until a segment of the victim is to leave."""

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        if target.name.endswith(DELETED_SUFFIX) and target.parent.name == str(VICTIM):
            os.kill(os.getpid(), signal.SIGKILL)


def carry_on(desk: Desk) -> None:
    """More of everything; one transaction is committed, one aborted, one open."""
    desk.append(6)
    if "compacted" in desk.tp.topic:
        desk.append(20)
    if desk.tp.topic in ("plain", "gaps", "transactions"):
        desk.partition.roll()
        desk.append(3)
    if desk.tp.topic == "idempotent":
        desk.send(15, 0, 4)
        desk.send(14, 3, 2, epoch=1)
    if "transaction" in desk.tp.topic or desk.tp.topic == "moved":
        for pid in (91, 92, 93):
            desk.send(pid, 0, 3, txn=True)
        desk.end_txn(91)
        desk.end_txn(92, abort=True)
        desk.append(2)


class DecidedFiles(PosixFiles):
    """The real disk, until a decision is on it."""

    armed = False

    def sync(self, handle: int) -> None:
        super().sync(handle)
        if self.armed and TRANSACTION_STATE_TOPIC in str(Path(f"/proc/self/fd/{handle}").readlink()):
            os.kill(os.getpid(), signal.SIGKILL)


def all_kinds(log_dirs: Sequence[Path]) -> None:
    """Never returns."""
    clock = now_clock()
    log = open_for_writing(log_dirs, clock, DeadlyFiles())
    for name in KINDS:
        carry_on(Desk(log, TopicPartition(name, 0), clock))
    Desk(log, VICTIM, clock).clean()


def transactions(log_dirs: Sequence[Path]) -> None:
    """Never returns: one transaction is open, one decided, both over both partitions."""
    files, clock = DecidedFiles(), now_clock()
    log = open_for_writing(log_dirs, clock, files)
    begun = {name: log.transactions.begin(name) for name in (UNDECIDED, DECIDED)}
    for name, producer in begun.items():
        log.transactions.join(producer, TXN)
        for tp in TXN:
            stamp = ProducerStamp(producer.producer_id, producer.producer_epoch, 0)
            log.partition(tp).append_as_producer([NewRecord(name.encode(), b"key-1", clock.now_ms())], stamp)
    files.armed = True
    log.transactions.end(begun[DECIDED], commit=True)


def write_and_be_killed(what: str, log_dirs: Sequence[Path]) -> None:
    """Runs one of the above in a process of its own."""
    command = [sys.executable, "-m", __name__, what, *map(str, log_dirs)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr


if __name__ == "__main__":
    {"kinds": all_kinds, "transactions": transactions}[sys.argv[1]]([Path(name) for name in sys.argv[2:]])
