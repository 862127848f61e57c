"""``tiered transaction``: list transactions and their owners, and abort those that hang.

Kafka's words: a transaction *hangs* if it is open in a partition but unknown to every coordinator. Readers of
``read_committed`` wait at its first record forever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from tiered.errors import NotFoundError
from tiered.format.batch import encode_marker
from tiered.format.control import ControlType
from tiered.format.coordinator_records import TRANSACTION_STATE_TOPIC, TxnState, TxnValue
from tiered.local.directory.read_only_log import LogView
from tiered.local.partition.read_log import ReadLog
from tiered.local.partition.write_log import WriteLog
from tiered.local.transactions.state_log import replay_state
from tiered.model import TopicPartition
from tiered.plan.transactions import TransactionCoordinator
from tiered.plan.visibility import OpenTxn
from tiered.program.application import (
    Application,
    Command,
    Group,
    confirm,
    one_partition,
    pass_application,
)
from tiered.program.open_log import open_directory, open_view
from tiered.program.open_reader import need_topic
from tiered.program.output import Problem, columns
from tiered.times import format_time

_OPEN = frozenset({TxnState.ONGOING, TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT})


@click.group(cls=Group, name="transaction")
def command() -> None:
    """List transactions of a log directory, and abort one that hangs."""


@command.command("list", cls=Command)
@pass_application
def list_command(app: Application) -> int:
    """List transactional ids with their state, and the transactions that are open in a partition.

    A reader of `read_committed` waits at the first offset of an open transaction. One that hangs is unknown to the
    coordinator of this directory.

    \b
    Example:
      tiered transaction list --log-dir data
    """
    with open_view(app) as log:
        known = _known(log)
        owners = _owners(known)
        still_open = [_open_fields(tp, txn, owners.get(txn.producer_id)) for tp, txn in _open(log)]
    ids = [_fields(name, value) for name, value in sorted(known.items())]
    rows = [
        [
            one["transactional_id"],
            one["state"],
            str(one["producer_id"]),
            ", ".join(one["partitions"]) or "-",
            format_time(one["last_update_ms"]),
        ]
        for one in ids
    ]
    names = ["id", "state", "producer", "partitions", "last update"]
    text = columns(names, rows) if ids else ["no transaction was ever begun here"]
    names = ["partition", "first offset", "producer", "newest record", "id"]
    text += ["", *columns(names, [_open_row(fields) for fields in still_open])] if still_open else ["none is open"]
    return app.out.result("transaction list", {"transactions": ids, "open": still_open}, text)


@command.command("abort", cls=Command)
@click.argument("partition", metavar="TOPIC:P")
@click.option("--producer-id", type=int, required=True, help="as `tiered transaction list` shows it")
@pass_application
def abort_command(app: Application, *, partition: str, producer_id: int) -> int:
    """Abort a transaction that hangs, by an ABORT marker. No program may write to the directory meanwhile.

    Transactions of this directory's own coordinator do not hang: opening the log for writing ends them.

    \b
    Example:
      tiered transaction abort orders:0 --producer-id 4711 --log-dir data --dry-run
    """
    tp = one_partition(partition)
    # Read-only, so that a dry run changes nothing: opening for writing ends transactions that the coordinator knows.
    with open_view(app) as log:
        need_topic(tp.topic, log.topics())
        txn = _find(log.partition(tp), producer_id)
        owner = _owners(_known(log)).get(producer_id)
    if txn is None:
        raise NotFoundError(
            f"{tp}: producer {producer_id} has no open transaction there",
            hint="`tiered transaction list` shows what is open",
        )
    fields = {**_open_fields(tp, txn, owner), "dry_run": app.dry_run}
    verb = "would be aborted" if owner is None else f"is of {owner}: opening the log for writing may settle it"
    if not app.dry_run:
        confirm(app, "transaction abort", f"Abort the transaction of producer {producer_id} in {tp}?")
        with open_directory(app) as log:
            verb = "aborted" if _end(app, log.partition(tp), producer_id) else "was settled by its coordinator"
    return app.out.result(
        "transaction abort",
        fields,
        [f"{tp}: the transaction of producer {producer_id} from {txn.first_offset} {verb}"],
    )


def _find(log: ReadLog, producer_id: int) -> OpenTxn | None:
    return next((txn for txn in log.open_txns() if txn.producer_id == producer_id), None)


def _owners(known: Mapping[str, TxnValue]) -> dict[int, str]:
    """Return the transactional ids of open transactions, by producer id."""
    return {value.producer_id: name for name, value in known.items() if value.state in _OPEN}


def _end(app: Application, log: WriteLog, producer_id: int) -> bool:
    """Abort a transaction that is still open. Return False if the coordinator ended it when the log was opened."""
    txn = _find(log, producer_id)
    if txn is None:
        return False
    epoch = max(txn.coordinator_epoch, 0)
    producer = {"producer_id": txn.producer_id, "producer_epoch": txn.producer_epoch}
    log.append_as_coordinator(encode_marker(ControlType.ABORT, epoch, app.clock.now_ms(), **producer))
    log.flush()
    return True


def _known(log: LogView) -> dict[str, TxnValue]:
    coordinator = TransactionCoordinator()
    info = log.topics().get(TRANSACTION_STATE_TOPIC)
    if info is not None:
        tps = (TopicPartition(TRANSACTION_STATE_TOPIC, number) for number in info.here)
        replay_state((log.partition(tp) for tp in tps), coordinator.replay)
    return dict(coordinator.transactions())


def _open(log: LogView) -> Iterator[tuple[TopicPartition, OpenTxn]]:
    broken = log.out_of_service
    for tp in (tp for tp in log.partitions() if tp not in broken):
        yield from ((tp, txn) for txn in log.partition(tp).open_txns())


def _fields(name: str, value: TxnValue) -> dict[str, Any]:
    return {
        "transactional_id": name,
        "state": value.state.name,
        "producer_id": value.producer_id,
        "producer_epoch": value.producer_epoch,
        "timeout_ms": value.timeout_ms,
        "partitions": [str(tp) for tp in value.partitions or ()],
        "last_update_ms": value.last_update_ms,
    }


def _open_fields(tp: TopicPartition, txn: OpenTxn, owner: str | None) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "producer_id": txn.producer_id,
        "producer_epoch": txn.producer_epoch,
        "first_offset": txn.first_offset,
        "last_timestamp": txn.last_timestamp,
        "transactional_id": owner,
        "hangs": owner is None,
    }


def _open_row(fields: dict[str, Any]) -> list[object]:
    tp = TopicPartition(fields["topic"], fields["partition"])
    newest = format_time(fields["last_timestamp"]) if fields["last_timestamp"] >= 0 else "-"
    owner = fields["transactional_id"] or Problem("hangs: no coordinator here knows it")
    return [tp, fields["first_offset"], str(fields["producer_id"]), newest, owner]
