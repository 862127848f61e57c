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
from tiered.format import group_metadata, transaction_log
from tiered.format.batch import decode_records, walk
from tiered.format.group_metadata import GroupKey, GroupValue, Member, OffsetKey, OffsetValue, OtherKey
from tiered.format.transaction_log import TxnState, TxnValue
from tiered.format.wire import WireReader
from tiered.model import Record
from tiered.plan.transaction_steps import Step
from tiered.plan.transactions import TransactionCoordinator

DELETED = "<DELETE>"


def records_of(fixtures: Path, partition: str) -> Iterator[Record]:
    for log in sorted(partition_dir(fixtures, partition).glob("*.log")):
        data = log.read_bytes()
        for position, header in walk(data):
            yield from decode_records(data[position : position + header.size_bytes])


def printed(fixtures: Path, partition: str, decoder: str) -> Iterator[tuple[Any, Any]]:
    """(key, value) of each record as Kafka's tool printed them; the value None where it is deleted."""
    path = fixtures / "expected" / MAIN / f"{partition}.{decoder}.txt.gz"
    for line in gzip.decompress(path.read_bytes()).decode("utf-8").splitlines():
        if line.startswith("| offset:"):
            key, value = line.rstrip("\n").split(" key: ", 1)[1].split(" payload: ", 1)
            yield json.loads(key), None if value == DELETED else json.loads(value)


def as_printed(value: TxnValue) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, partition in value.partitions or ():
        topics.setdefault(topic, []).append(partition)
    partitions = [{"topic": t, "partitionIds": numbers} for t, numbers in topics.items()]
    shown = {
        "producerId": value.producer_id,
        "producerEpoch": value.producer_epoch,
        "transactionTimeoutMs": value.timeout_ms,
        "transactionStatus": int(value.state),
        "transactionPartitions": None if value.partitions is None else partitions,
        "transactionLastUpdateTimestampMs": value.last_update_ms,
        "transactionStartTimestampMs": value.start_ms,
    }
    if value.client_version:
        shown["clientTransactionVersion"] = value.client_version
    return shown


def test_transaction_records(kafka_fixtures: Path) -> None:
    expected = printed(kafka_fixtures, "__transaction_state-0", "transaction-decoder")
    count = 0
    for record, (key, value) in zip(records_of(kafka_fixtures, "__transaction_state-0"), expected, strict=True):
        assert record.key is not None
        assert record.value is not None
        transactional_id = transaction_log.decode_key(record.key)
        decoded = transaction_log.decode_value(record.value)
        assert key == {"type": "0", "data": {"transactionalId": transactional_id}}
        assert value == {"version": "1", "data": as_printed(decoded)}
        assert transaction_log.encode_key(transactional_id) == record.key
        assert transaction_log.encode_value(decoded) == record.value
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
    assert {step.transactional_id for step in coordinator.recover()} == unfinished


def topics_of(reader: WireReader) -> list[dict[str, Any]]:
    return list(
        reader.array(
            lambda: {"topic": reader.string(), "partitions": list(reader.array(reader.int32, item_bytes=4))},
            item_bytes=6,
        )
    )


def member_as_printed(member: Member) -> dict[str, Any]:
    subscription = WireReader(member.subscription, "subscription")
    assert subscription.int16() == 3
    assignment = WireReader(member.assignment, "assignment")
    assert assignment.int16() == 3
    shown = {
        "memberId": member.member_id,
        "groupInstanceId": member.instance_id,
        "clientId": member.client_id,
        "clientHost": member.client_host,
        "rebalanceTimeout": member.rebalance_timeout_ms,
        "sessionTimeout": member.session_timeout_ms,
        "subscription": {
            "topics": list(subscription.array(subscription.string, item_bytes=2)),
            "userData": subscription.nullable_bytes(),
            "ownedPartitions": topics_of(subscription),
            "generationId": subscription.int32(),
            "rackId": subscription.nullable_string(),
        },
        "assignment": {"assignedPartitions": topics_of(assignment), "userData": assignment.nullable_bytes()},
    }
    subscription.end()
    assignment.end()
    return shown


def group_as_printed(value: GroupValue) -> dict[str, Any]:
    return {
        "protocolType": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "currentStateTimestamp": value.state_ms,
        "members": [member_as_printed(m) for m in value.members],
    }


def offset_as_printed(value: OffsetValue) -> dict[str, Any]:
    return {
        "offset": value.offset,
        "leaderEpoch": value.leader_epoch,
        "metadata": value.metadata,
        "commitTimestamp": value.commit_ms,
    }


def test_consumer_offsets(kafka_fixtures: Path) -> None:
    expected = printed(kafka_fixtures, "__consumer_offsets-0", "offsets-decoder")
    kinds: dict[type, int] = {}
    for record, (key, value) in zip(records_of(kafka_fixtures, "__consumer_offsets-0"), expected, strict=True):
        assert record.key is not None
        decoded = group_metadata.decode_key(record.key)
        kinds[type(decoded)] = kinds.get(type(decoded), 0) + 1
        if isinstance(decoded, OtherKey):
            assert key["type"] == str(decoded.version)
            assert decoded.data == record.key
            continue
        assert group_metadata.encode_key(decoded) == record.key
        if isinstance(decoded, OffsetKey):
            data = {"group": decoded.group, "topic": decoded.topic, "partition": decoded.partition}
            assert key == {"type": "1", "data": data}
        else:
            assert key == {"type": "2", "data": {"group": decoded.group}}
        if record.value is None:
            assert value is None
        elif isinstance(decoded, OffsetKey):
            offset = group_metadata.decode_offset(record.value)
            assert value == {"version": "4", "data": offset_as_printed(offset)}
            assert group_metadata.encode_offset(offset, version=4) == record.value
        else:
            group = group_metadata.decode_group(record.value)
            assert value == {"version": "3", "data": group_as_printed(group)}
            assert group_metadata.encode_group(group, version=3) == record.value
    assert kinds == {OffsetKey: 13, GroupKey: 6, OtherKey: 9}


@pytest.mark.parametrize("partition", ["__transaction_state-0", "__consumer_offsets-0"])
def test_nothing_that_is_cut_or_longer_is_read(kafka_fixtures: Path, partition: str) -> None:
    """Every prefix of every value: CorruptionError, and never anything else."""
    for record in list(records_of(kafka_fixtures, partition))[:40]:
        assert record.key is not None
        if record.value is None or record.key[1] > 2:
            continue
        if partition.startswith("__t"):
            decode = transaction_log.decode_value
        elif record.key[1] == 1:
            decode = group_metadata.decode_offset  # type: ignore[assignment]  # any decoder will do
        else:
            decode = group_metadata.decode_group  # type: ignore[assignment]  # any decoder will do
        for end in range(len(record.value)):
            with pytest.raises(CorruptionError):
                decode(record.value[:end])
        with pytest.raises(CorruptionError, match="1 bytes too many"):
            decode(record.value + b"\0")


def test_groups_as_the_admin_client_reports_them(kafka_fixtures: Path) -> None:
    committed: dict[OffsetKey, OffsetValue] = {}
    for record in records_of(kafka_fixtures, "__consumer_offsets-0"):
        assert record.key is not None
        key = group_metadata.decode_key(record.key)
        if isinstance(key, OffsetKey):
            if record.value is None:
                committed.pop(key, None)
            else:
                committed[key] = group_metadata.decode_offset(record.value)
    reported = json.loads((kafka_fixtures / "expected" / MAIN / "__consumer_offsets-0.groups.json").read_text())
    expected = {
        (group, topic_partition): facts
        for group, offsets in reported.items()
        for topic_partition, facts in offsets.items()
    }
    assert {
        (key.group, f"{key.topic}-{key.partition}"): {
            "offset": value.offset,
            "leaderEpoch": value.leader_epoch,
            "metadata": value.metadata,
        }
        for key, value in committed.items()
    } == expected


def test_the_coordinator_writes_what_the_broker_wrote(kafka_fixtures: Path) -> None:
    """Each change of the broker, asked of ours: the same record, byte for byte."""
    ours = TransactionCoordinator(max_timeout_ms=86_400_000)
    counts: dict[TxnState, int] = {}
    for record in records_of(kafka_fixtures, "__transaction_state-0"):
        assert record.key is not None
        assert record.value is not None
        name, wanted = transaction_log.decode_key(record.key), transaction_log.decode_value(record.value)
        step = step_to(ours, name, wanted)
        assert step is not None
        assert step.record.key == record.key
        assert step.record.value == record.value, (step.after, wanted)
        ours.apply(step)
        counts[wanted.state] = counts.get(wanted.state, 0) + 1
    assert sorted(counts) == [0, 1, 2, 3, 4, 5]


def step_to(ours: TransactionCoordinator, name: str, wanted: TxnValue) -> Step | None:
    now_ms, before = wanted.last_update_ms, ours.find(name)
    if wanted.state is TxnState.EMPTY or before is None:
        return ours.init(name, new_producer_id=wanted.producer_id, now_ms=now_ms, timeout_ms=wanted.timeout_ms)
    mine = {"producer_id": before.producer_id, "producer_epoch": before.producer_epoch, "now_ms": now_ms}
    if wanted.state is TxnState.ONGOING:
        return ours.add(name, wanted.partitions or (), client_version=wanted.client_version, **mine)
    if wanted.state in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT):
        return ours.prepare(name, commit=wanted.state is TxnState.PREPARE_COMMIT, **mine)
    return ours.complete(name, now_ms=now_ms)
