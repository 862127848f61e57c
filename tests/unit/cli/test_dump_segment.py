"""What is printed of a file is what Kafka's own tool prints of it; damage is exit code 13."""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.check.building import Scenario, flip, scenario
from tests.unit.cli.conftest import Cli

PARTITIONS = ["orders-1", "txn-0", "compact-keep-0", "codec-zstd-0", "logappendtime-0", "idempotent-0"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path) as built:
        yield built


def kafka_batches(text: str) -> list[dict[str, str]]:
    """The batch lines of a dump by Kafka's tool, of all files one after the other."""
    lines = [line for line in text.splitlines() if line.startswith("baseOffset:")]
    return [dict(re.findall(r"(\w+): (\S+)", line)) for line in lines]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_batches_as_kafka_prints_them(cli: Cli, kafka_fixtures: Path, partition: str) -> None:
    expected_file = kafka_fixtures / f"expected/main/{partition}.dump.txt.gz"
    if not expected_file.exists():
        pytest.fail(f"there is no dump of {partition}")
    expected = kafka_batches(gzip.decompress(expected_file.read_bytes()).decode())
    files = sorted((kafka_fixtures / "main" / partition).glob("*.log"))
    done = cli("dump-segment", *files, "--json", "--verify")
    assert done.code == 0
    seen = [message for message in done.messages if message["message_type"] == "batch"]
    assert [_as_kafka(batch) for batch in seen] == [_wanted(batch) for batch in expected]


def _as_kafka(batch: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(batch["base_offset"]),
        str(batch["last_offset"]),
        str(batch["count"]),
        str(batch["position"]),
        str(batch["size_bytes"]),
        str(batch["producer_id"]),
        str(batch["base_sequence"]),
        str(batch["leader_epoch"]),
        str(batch["transactional"]).lower(),
        str(batch["control"]).lower(),
        batch["codec"],
        str(batch["crc"]),
        str(batch["valid"]).lower(),
    )


def _wanted(batch: dict[str, str]) -> tuple[str, ...]:
    names = (
        "baseOffset lastOffset count position size producerId baseSequence partitionLeaderEpoch isTransactional "
        "isControl compresscodec crc isvalid"
    )
    return tuple(batch[name] for name in names.split())


def test_indexes_snapshots_and_checkpoints(cli: Cli, kafka_fixtures: Path) -> None:
    root = kafka_fixtures / "main"
    for pattern, kind in [
        ("txn-0/*.index", "index_entry"),
        ("txn-0/*.timeindex", "time_index_entry"),
        ("txn-0/*.txnindex", "aborted_txn"),
        ("idempotent-0/*.snapshot", "producer"),
        ("txn-0/leader-epoch-checkpoint", "leader_epoch"),
        ("txn-0/partition.metadata", "partition_metadata"),
        ("recovery-point-offset-checkpoint", "checkpoint"),
        ("meta.properties", "meta_properties"),
    ]:
        files = sorted(root.glob(pattern))
        done = cli("dump-segment", *files, "--json")
        kinds = {message["message_type"] for message in done.messages}
        assert (done.code, kinds) == (0, {kind, "summary"}), pattern
        text = cli("dump-segment", *files).text
        assert len(text.splitlines()) == len(done.messages) - 1 + len(files)


def test_records_and_their_values(cli: Cli, log: Scenario) -> None:
    seen = cli("dump-segment", log.logs()[0], "--records", "--json").messages
    records = [message for message in seen if message["message_type"] == "record"]
    batches = [message for message in seen if message["message_type"] == "batch"]
    assert [record["offset"] for record in records] == list(range(len(records)))
    assert sum(batch["count"] for batch in batches) == len(records)
    assert records[1]["value"] == "value 000001 " * 8
    assert {record["batch_position"] for record in records} == {batch["position"] for batch in batches}
    text = cli("dump-segment", log.logs()[0], "--records").text
    assert "| 1 1700000001000 key 'key-1'" in text


def test_an_object_and_its_bundle(cli: Cli, log: Scenario) -> None:
    row = log.rows()[0]
    seen = cli("dump-segment", f"{log.url}/{log.log_key(row)}", "--json", "--verify")
    assert seen.code == 0
    assert sum(m["count"] for m in seen.messages if m["message_type"] == "batch") == row.records
    bundle = cli("dump-segment", f"{log.url}/{log.index_key(row)}", "--json").messages
    assert bundle[0]["message_type"] == "descriptor"
    assert (bundle[0]["crc32c"], bundle[0]["end_offset"]) == (row.crc, row.next)
    root = cli("dump-segment", f"{log.url}/{log.root_key()}", "--json").messages
    assert (root[0]["next_offset"], root[0]["writer"]["epoch"]) == (log.root().next_offset, 1)
    assert [each["crc"] for each in root if each["message_type"] == "row"] == [each.crc for each in log.rows()]
    absent = cli("dump-segment", f"{log.url}/nothing.log")
    assert (absent.code, "has no object" in absent.err) == (10, True)


def test_damage_is_shown_and_counted(cli: Cli, log: Scenario) -> None:
    flip(log.logs()[0], 100)
    seen = cli("dump-segment", log.logs()[0])
    assert (seen.code, "INVALID" in seen.text) == (13, True)
    assert cli("dump-segment", log.logs()[0], "--json").summary["findings"] == 1
    log.logs()[1].write_bytes(b"\0" * 500)
    garbage = cli("dump-segment", log.logs()[1], "--json")
    assert (garbage.code, garbage.messages[0]["message_type"]) == (13, "finding")


def test_verify_looks_at_the_indexes_beside_the_log(cli: Cli, log: Scenario) -> None:
    index = log.logs()[0].with_suffix(".index")
    shutil.copy(log.logs()[1].with_suffix(".index"), index)
    index.write_bytes(index.read_bytes()[:-3])
    assert cli("dump-segment", log.logs()[0]).code == 0
    verified = cli("dump-segment", log.logs()[0], "--verify")
    assert (verified.code, "offset index" in verified.text) == (13, True)


def test_a_torn_tail_is_damage_with_its_position(cli: Cli, log: Scenario) -> None:
    path = log.logs()[0]
    path.write_bytes(path.read_bytes()[:-5])
    seen = cli("dump-segment", path, "--json")
    last = [message for message in seen.messages if message["message_type"] == "batch"][-1]
    finding = next(message for message in seen.messages if message["message_type"] == "finding")
    assert (seen.code, seen.summary["findings"], finding["code"]) == (13, 1, "log_torn")
    assert finding["position"] == last["position"] + last["size_bytes"]
    assert "bytes of an unfinished batch follow the last whole batch" in finding["message"]
    verified = cli("dump-segment", path, "--json", "--verify")
    assert (verified.code, verified.summary["findings"]) == (13, 1 + 2)  # and both indexes point behind the cut


@pytest.mark.parametrize("name", ["0.log", "00000000000000000000.index", "x.snapshot", "meta.properties"])
def test_noise_never_gives_a_traceback(cli: Cli, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for content in (b"", b"\xff" * 7, bytes(range(256)) * 5, b"\0" * 1000, b"\x7f" * 64):
        path.write_bytes(content)
        done = cli("dump-segment", path, "--records", "--verify")
        assert done.code in (0, 2, 13), (content[:10], done.err)
        assert "Traceback" not in done.err
        assert "defect" not in done.err


def test_the_note_of_a_sealed_segment(cli: Cli, log: Scenario, tmp_path: Path) -> None:
    note = log.logs()[0].with_suffix(".seal")
    seen = cli("dump-segment", note, "--json")
    assert seen.code == 0
    assert seen.messages[0]["message_type"] == "seal"
    assert seen.messages[0]["size_bytes"] == log.logs()[0].stat().st_size
    assert f"size_bytes {log.logs()[0].stat().st_size}" in cli("dump-segment", note).text
    torn = tmp_path / f"{0:020d}.seal"
    for content in (b"{", b"[]", b"\xff"):
        torn.write_bytes(content)
        assert cli("dump-segment", torn).code == 13
