"""The broker's ``__transaction_state`` and ``__consumer_offsets``: decoded as its tool prints them, encoded again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.fixtures import MAIN, partition_dir
from tiered.errors import CorruptionError
from tiered.format.batch import decode_records
from tiered.format.batch_scanner import walk_headers
from tiered.format.coordinator_records import (
    TxnState,
    TxnValue,
    decode_group_key,
    decode_position,
    decode_transaction,
    decode_transaction_key,
    encode_position,
    encode_position_key,
    encode_transaction,
    encode_transaction_key,
    group_partition,
    group_protocol,
)
from tiered.format.kernels import Record
from tiered.inspect.items import Content
from tiered.model import Position
from tiered.plan import transactions
from tiered.plan.transactions import TransactionChange, TransactionCoordinator

DELETED = "<DELETE>"


def records_of(fixtures: Path, partition: str) -> Iterator[Record]:
    for log in sorted(partition_dir(fixtures, partition).glob("*.log")):
        data = log.read_bytes()
        for position, header in walk_headers(data):
            yield from decode_records(data[position : position + header.size_bytes])


def printed(fixtures: Path, partition: str, decoder: str) -> Iterator[tuple[Any, Any]]:
    """(key, value) of each record as Kafka's tool printed them; the value None where it is deleted."""
    path = fixtures / "expected" / MAIN / f"{partition}.{decoder}.txt.gz"
    for line in gzip.decompress(path.read_bytes()).decode("utf-8").splitlines():
        if line.startswith("| offset:"):
            key, value = line.rstrip("\n").split(" key: ", 1)[1].split(" payload: ", 1)
            yield json.loads(key), None if value == DELETED else json.loads(value)


def decoded(record: Record, decoder: str) -> tuple[Any, Any] | None:
    """Key and value as ``inspect`` decodes them; None for what it shows raw."""
    found = Content(deep=True, data=True, decoder=decoder).fields(record)
    return (found["decoded"]["key"], found["decoded"]["value"]) if "decoded" in found else None


def test_transaction_records(kafka_fixtures: Path) -> None:
    expected = printed(kafka_fixtures, "__transaction_state-0", "transaction-decoder")
    count = 0
    for record, (key, value) in zip(records_of(kafka_fixtures, "__transaction_state-0"), expected, strict=True):
        assert record.key is not None
        assert record.value is not None
        assert decoded(record, "transactions") == (key, value)
        assert encode_transaction_key(decode_transaction_key(record.key)) == record.key
        assert encode_transaction(decode_transaction(record.value)) == record.value
        count += 1
    assert count == 362


def test_a_broker_s_log_replays_into_its_last_states(kafka_fixtures: Path) -> None:
    coordinator = TransactionCoordinator()
    for record in records_of(kafka_fixtures, "__transaction_state-0"):
        assert record.key is not None
        coordinator.replay(record.key, record.value)
    expected = {}
    for key, value in printed(kafka_fixtures, "__transaction_state-0", "transaction-decoder"):
        expected[key["data"]["transactionalId"]] = value["data"]["transactionStatus"]
    assert {name: int(txn.state) for name, txn in coordinator.transactions()} == expected
    # One transaction was left open on purpose; all others are decided.
    assert [(s.state, s.partitions) for _, s in coordinator.transactions() if s.state is TxnState.ONGOING]
    unfinished = {name for name, state in expected.items() if state in (1, 2, 3)}
    assert set(coordinator.unfinished()) == unfinished


def test_positions_and_groups_of_the_broker(kafka_fixtures: Path) -> None:
    printed_records = printed(kafka_fixtures, "__consumer_offsets-0", "offsets-decoder")
    positions = 0
    for record, (key, value) in zip(records_of(kafka_fixtures, "__consumer_offsets-0"), printed_records, strict=True):
        assert record.key is not None
        number, group, tp = decode_group_key(record.key)
        assert str(number) == key["type"]
        if tp is None:
            protocol = group_protocol(number, record.value)
            assert (decoded(record, "offsets"), protocol) in {(None, "consumer"), (None, ""), (None, None)}
            continue
        assert decoded(record, "offsets") == (key, value)
        assert encode_position_key(group, tp) == record.key
        positions += value is not None
    assert positions == 10


@pytest.mark.parametrize(
    ("version", "value"),
    [(0, ""), (1, "0000000000000009"), (2, ""), (3, ""), (4, "01001000000000000000000000000000000009")],
    ids=["first", "expiry", "without", "epoch", "topic id in a tag"],
)
def test_a_position_of_every_version_is_read(version: int, value: str) -> None:
    epoch, metadata = "00000002" if version >= 3 else "", "03ce94" if version == 4 else "0002ce94"
    data = bytes.fromhex(f"{version:04x}" + "0000000000000007" + epoch + metadata + "00000000000003e8" + value)
    assert decode_position(data) == Position(7, 2 if version >= 3 else -1, "Δ", 1_000)
    for end in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_position(data[:end])
    with pytest.raises(CorruptionError):
        decode_position(data + b"\0")


def test_a_position_in_the_version_that_we_write() -> None:
    position = Position(7, 2, "Δ", 1_000)
    written = encode_position(position)
    assert written.hex() == "0003" + "0000000000000007" + "00000002" + "0002ce94" + "00000000000003e8"
    assert decode_position(written) == position
    with pytest.raises(CorruptionError, match="version 9 is not in"):
        decode_position(b"\x00\x09" + written[2:])


def test_a_group_has_the_partition_of_java_s_hash() -> None:
    # A broker put "theirs" into partition 1 of 5. "polygenelubricants".hashCode() is the least number.
    assert group_partition("theirs", 5) == 1
    names = ("abc", "billing", "Δ", "𝄞", "polygenelubricants")
    assert [group_partition(name, 50) for name in names] == [96354 % 50, 109829509 % 50, 916 % 50, 1772394 % 50, 0]


def test_no_transaction_that_is_cut_or_longer_is_read(kafka_fixtures: Path) -> None:
    """Every prefix of every value: CorruptionError, and never anything else."""
    for record in list(records_of(kafka_fixtures, "__transaction_state-0"))[:40]:
        assert record.value is not None
        for end in range(len(record.value)):
            with pytest.raises(CorruptionError):
                decode_transaction(record.value[:end])
        with pytest.raises(CorruptionError, match="1 bytes too many"):
            decode_transaction(record.value + b"\0")


def test_the_coordinator_writes_what_the_broker_wrote(kafka_fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of the broker, asked of ours: the same record, byte for byte."""
    monkeypatch.setattr(transactions, "MAX_TIMEOUT_MS", 86_400_000)
    ours = TransactionCoordinator()
    counts: dict[TxnState, int] = {}
    for record in records_of(kafka_fixtures, "__transaction_state-0"):
        assert record.key is not None
        assert record.value is not None
        name, wanted = decode_transaction_key(record.key), decode_transaction(record.value)
        step = step_to(ours, name, wanted)
        assert step is not None
        assert step.record.key == record.key
        assert step.record.value == record.value, (step.after, wanted)
        ours.apply(step)
        counts[wanted.state] = counts.get(wanted.state, 0) + 1
    assert sorted(counts) == [0, 1, 2, 3, 4, 5]


def step_to(ours: TransactionCoordinator, name: str, wanted: TxnValue) -> TransactionChange | None:
    now_ms, before = wanted.last_update_ms, ours.find(name)
    if wanted.state is TxnState.EMPTY or before is None:
        return ours.init(name, new_producer_id=wanted.producer_id, now_ms=now_ms, timeout_ms=wanted.timeout_ms)
    mine = {"producer_id": before.producer_id, "producer_epoch": before.producer_epoch, "now_ms": now_ms}
    if wanted.state is TxnState.ONGOING:
        return ours.add(name, wanted.partitions or (), client_version=wanted.client_version, **mine)
    if wanted.state in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT):
        return ours.prepare(name, commit=wanted.state is TxnState.PREPARE_COMMIT, **mine)
    return ours.complete(name, now_ms=now_ms)
