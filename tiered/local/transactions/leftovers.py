"""What an unclean stop left open in the partitions, told apart by who has to end it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tiered.errors import TieredError
from tiered.format.coordinator_records import NO_ID
from tiered.local.partition.writer import PartitionWriter
from tiered.model import TopicPartition
from tiered.plan.open_txns import OpenTxn
from tiered.plan.transactions import TransactionCoordinator

LOGGER = logging.getLogger("tiered.local")


class Leftover(NamedTuple):
    """A transaction that is open in ``tp``. ``name`` is its transactional id, "" if its records are lost."""

    tp: TopicPartition
    txn: OpenTxn
    name: str


class Leftovers(NamedTuple):
    """``nameless`` are ended here and now. ``known`` are listed under their id, and aborted if that was not decided.

    ``later`` were begun after a decided transaction of their id was complete, though the record of that is lost: they
    must not get its markers.
    """

    nameless: list[Leftover]
    known: list[Leftover]
    later: list[Leftover]


def find_leftovers(
    writers: Iterable[PartitionWriter], coordinator: TransactionCoordinator, is_ours: Callable[[int], bool]
) -> Leftovers:
    """Of producers whose ids ``is_ours`` knows, or the coordinator's log; those of others are left alone."""
    owners: dict[int, str] = {}
    for name, value in coordinator.transactions():
        owners[value.producer_id] = name
        if value.next_producer_id != NO_ID:
            owners[value.next_producer_id] = name
    found = Leftovers([], [], [])
    for writer in writers:
        try:
            open_txns = writer.open_txns()
        except TieredError as error:
            LOGGER.error("open_transactions_unknown partition=%s error=%s", writer.tp, error)
            continue
        for txn in open_txns:
            owner = owners.get(txn.producer_id)
            if owner is None:
                if is_ours(txn.producer_id):
                    found.nameless.append(Leftover(writer.tp, txn, ""))
            elif coordinator.is_later(owner, txn.producer_id, txn.producer_epoch):
                found.later.append(Leftover(writer.tp, txn, owner))
            else:
                found.known.append(Leftover(writer.tp, txn, owner))
    return found
