"""What is printed of a file is what Kafka's own tool prints of it; damage is exit code 13."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.unit.check.building import Scenario, flip, scenario
from tests.unit.cli.conftest import Cli
from tiered.format.batch import encode_batch
from tiered.model import NewRecord

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
    done = cli("inspect", *files, "--json")
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
        done = cli("inspect", *files, "--json")
        kinds = {message["message_type"] for message in done.messages}
        assert (done.code, kinds) == (0, {kind, "summary"}), pattern
        text = cli("inspect", *files).text
        assert len(text.splitlines()) == len(done.messages) - 1 + len(files)


def test_records_and_their_values(cli: Cli, log: Scenario) -> None:
    seen = cli("inspect", log.logs()[0], "--records", "--json").messages
    records = [message for message in seen if message["message_type"] == "record"]
    batches = [message for message in seen if message["message_type"] == "batch"]
    assert [record["offset"] for record in records] == list(range(len(records)))
    assert sum(batch["count"] for batch in batches) == len(records)
    assert records[1]["value"] == "value 000001 " * 8
    assert {record["batch_position"] for record in records} == {batch["position"] for batch in batches}
    text = cli("inspect", log.logs()[0], "--records").text
    assert "| 1 1700000001000 key 'key-1'" in text


def test_an_object_and_its_bundle(cli: Cli, log: Scenario) -> None:
    row = log.rows()[0]
    seen = cli("inspect", f"{log.url}/{log.log_key(row)}", "--json")
    assert seen.code == 0
    assert sum(m["count"] for m in seen.messages if m["message_type"] == "batch") == row.records
    bundle = cli("inspect", f"{log.url}/{log.index_key(row)}", "--json").messages
    assert bundle[0]["message_type"] == "descriptor"
    assert (bundle[0]["crc32c"], bundle[0]["end_offset"]) == (row.crc, row.next)
    root = cli("inspect", f"{log.url}/{log.root_key()}", "--json").messages
    assert (root[0]["next_offset"], root[0]["writer"]["epoch"]) == (log.root().next_offset, 1)
    assert [each["crc"] for each in root if each["message_type"] == "row"] == [each.crc for each in log.rows()]
    absent = cli("inspect", f"{log.url}/nothing.log")
    assert (absent.code, "has no object" in absent.err) == (10, True)


def test_damage_is_shown_and_counted(cli: Cli, log: Scenario) -> None:
    flip(log.logs()[0], 100)
    seen = cli("inspect", log.logs()[0])
    assert (seen.code, "INVALID" in seen.text) == (13, True)
    assert cli("inspect", log.logs()[0], "--json").summary["findings"] == 1
    log.logs()[1].write_bytes(b"\0" * 500)
    garbage = cli("inspect", log.logs()[1], "--json")
    assert (garbage.code, garbage.messages[0]["message_type"]) == (13, "finding")


def test_a_torn_tail_is_damage_with_its_position(cli: Cli, log: Scenario) -> None:
    path = log.logs()[0]
    path.write_bytes(path.read_bytes()[:-5])
    seen = cli("inspect", path, "--json")
    last = [message for message in seen.messages if message["message_type"] == "batch"][-1]
    finding = next(message for message in seen.messages if message["message_type"] == "finding")
    assert (seen.code, seen.summary["findings"], finding["code"]) == (13, 1, "log_torn")
    assert finding["position"] == last["position"] + last["size_bytes"]
    assert "bytes of an unfinished batch follow the last whole batch" in finding["message"]


@pytest.mark.parametrize(
    "name", ["0.log", f"{0:020d}.index", f"{0:020d}.timeindex", f"{0:020d}.txnindex", "x.snapshot", "meta.properties"]
)
def test_noise_never_gives_a_traceback(cli: Cli, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for content in (b"", b"\xff" * 7, bytes(range(256)) * 5, b"\0" * 1000, b"\x7f" * 64):
        path.write_bytes(content)
        for options in ((), ("--json",)):
            done = cli("inspect", path, "--records", *options)
            assert done.code in (0, 2, 13), (content[:10], done.err)
            assert "Traceback" not in done.err
            assert "defect" not in done.err


def test_the_note_of_a_sealed_segment(cli: Cli, log: Scenario, tmp_path: Path) -> None:
    note = log.logs()[0].with_suffix(".seal")
    seen = cli("inspect", note, "--json")
    assert seen.code == 0
    assert seen.messages[0]["message_type"] == "seal"
    assert seen.messages[0]["size_bytes"] == log.logs()[0].stat().st_size
    assert f"size_bytes {log.logs()[0].stat().st_size}" in cli("inspect", note).text
    torn = tmp_path / f"{0:020d}.seal"
    for content in (b"{", b"[]", b"\xff"):
        torn.write_bytes(content)
        assert cli("inspect", torn).code == 13


def test_a_partition_by_its_name(cli: Cli, log: Scenario) -> None:
    local = cli("inspect", "flights:0", "--log-dir", log.directory, "--json")
    assert local.code == 0
    assert {message["message_type"] for message in local.messages[:-1]} >= {"batch", "index_entry", "leader_epoch"}
    absent = cli("inspect", "flights-9", "--log-dir", log.directory)
    assert (absent.code, "holds no partition of this name" in absent.err) == (10, True)


def test_folders_and_what_is_missing(cli: Cli, log: Scenario, tmp_path: Path) -> None:
    folder = log.directory / "flights-0"
    whole = cli("inspect", folder, "--json").summary["files"]
    assert whole == len([path for path in folder.iterdir() if not path.name.startswith("tiered-")])
    everything = cli("inspect", log.directory, "--json").summary["files"]
    assert everything > whole
    mixed = cli("inspect", tmp_path / "none.log", folder / "leader-epoch-checkpoint", "--json")
    assert (mixed.code, mixed.summary["files"]) == (10, 1)
    assert "going on" in mixed.summary["warnings"][0]
    assert mixed.messages[0]["message_type"] == "warning"
    assert cli("dump-segment").code == 2


def test_damage_in_one_file_does_not_hide_the_next(cli: Cli, log: Scenario) -> None:
    first, second = log.logs()[:2]
    first.write_bytes(b"\x7f" * 100 + first.read_bytes())
    seen = cli("inspect", first, first.with_suffix(".index"), second, "--json")
    assert (seen.code, seen.summary["findings"], seen.summary["files"]) == (13, 1, 3)
    assert {message["file"] for message in seen.messages if message["message_type"] == "batch"} == {str(second)}
    text = cli("inspect", first, second).text
    assert f"error: {first} at byte 0: no batch starts here" in text


def test_a_window_of_batches(cli: Cli, log: Scenario) -> None:
    path = log.logs()[0]
    every = [m for m in cli("inspect", path, "--json").messages if m["message_type"] == "batch"]

    def bases(*options: str) -> list[int]:
        messages = cli("inspect", path, "--json", *options).messages
        return [message["base_offset"] for message in messages if message["message_type"] == "batch"]

    third = every[2]["base_offset"]
    assert bases("--from", str(third + 1), "--limit", "2") == [third, every[3]["base_offset"]]
    assert bases("--from", "1000000") == []
    entries = cli("inspect", path.with_suffix(".index"), "--json", "--from", str(third)).messages[:-1]
    assert entries
    assert min(entry["offset"] for entry in entries) >= third


def test_keys_and_values_that_are_no_text(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(encode_batch([NewRecord(b"\xff", b"\xff", 5, []), NewRecord(None, None, 5, [])]))
    seen = cli("inspect", path, "--json", "--records").messages
    records = [message for message in seen if message["message_type"] == "record"]
    assert [(record["key"], record["value"], record["encoding"]) for record in records] == [
        ("/w==", "/w==", "base64"),
        (None, None, "utf-8"),
    ]
    assert "key b'\\xff' value b'\\xff'" in cli("inspect", path, "--records").text


def test_internal_topics_are_decoded_by_their_name(cli: Cli, kafka_fixtures: Path) -> None:
    def records(partition: str, *options: str) -> list[dict[str, Any]]:
        messages = cli("inspect", kafka_fixtures / "main" / partition, "--json", "--records", *options).messages
        return [message for message in messages if message["message_type"] == "record"]

    offsets = records("__consumer_offsets-0")
    assert offsets[2]["decoded"]["key"]["data"] == {"group": "g-classic", "topic": "orders", "partition": 0}
    assert offsets[2]["decoded"]["value"]["data"]["offset"] == 3
    assert [each["value"] for each in offsets if each.get("decoded", {"value": 1})["value"] is None] == [None] * 3
    assert "record type 2 is not decoded" in {each.get("undecoded") for each in offsets}
    states = records("__transaction_state-0")
    assert states[0]["decoded"]["key"]["type"] == "0"
    assert "decoded" not in records("orders-0")[0]
    leader = records("__cluster_metadata-0")[0]
    assert leader["control_type"] == "LEADER_CHANGE"
    assert "decoded" not in leader
    marker = next(record for record in records("txn-0") if "control_type" in record)
    assert (marker["control_type"], marker["coordinator_epoch"]) == ("ABORT", 6)


@pytest.mark.parametrize(
    ("behind", "part", "closed", "code"),
    [
        (bytes(5000), -1, False, 0),
        (bytes(5), -1, False, 0),
        (bytes(5000), -1, True, 13),
        (bytes(5000), 0, False, 13),
        (bytes(5000) + b"x", -1, False, 13),
        (b"torn" * 5, -1, False, 13),
    ],
)
def test_zeros_end_the_last_segment_of_a_directory_that_is_open(
    cli: Cli, log: Scenario, behind: bytes, part: int, closed: bool, code: int
) -> None:
    """A broker that preallocates has them there; `check` says the same of them."""
    path, mark = log.logs()[part], log.directory / ".kafka_cleanshutdown"
    size = path.stat().st_size
    if not closed:
        mark.unlink()
    assert mark.exists() == closed
    path.write_bytes(path.read_bytes() + behind)
    done = cli("inspect", path)
    told = f"{len(behind)} zero bytes follow the last whole batch: its writer took that room ahead"
    assert (done.code, told in done.text + done.err, str(size) in done.text + done.err) == (code, code == 0, True)
    moved = path.rename(log.directory.parent / path.name)
    assert cli("inspect", moved).code == 13  # no process writes it there


def test_an_object_of_a_directory_store(cli: Cli, tmp_path: Path) -> None:
    """Its files have other names than the objects."""
    url = f"file://{tmp_path / 'bucket'}"
    with tiered.open(tmp_path / "log", url) as log:
        log.topic("t", create=True).append(b"value")
        log.sync(timeout=60)
    for remote in (url, f"{url}/"):
        (segment,) = cli("topic", "show", "t:0", "--segments", "--remote", remote, "--json").summary["segments"]
        done = cli("inspect", f"{url}/{segment['key']}", "--remote", remote, "--json", "--records")
        assert (done.code, done.summary["files"], done.summary["findings"]) == (0, 1, 0)
        records = [message for message in done.messages if message["message_type"] == "record"]
        assert [record["value"] for record in records] == ["value"]
    assert cli("inspect", f"{url}/none.log", "--remote", url).code == 10


def test_an_offset_of_a_partition_shows_the_log_that_holds_it(cli: Cli, tmp_path: Path) -> None:
    """The README shows it: one batch and its records, not 692 lines that begin with an index."""
    with tiered.open(tmp_path / "log") as opened:
        topic = opened.topic("people", create=True, config={"segment.bytes": 2000, "index.interval.bytes": 100})
        for i in range(0, 300, 3):
            topic.append_many([b"v%d" % (i + j) + b"." * 20 for j in range(3)])
    name = ("inspect", "people-0", "--log-dir", tmp_path / "log")
    shown = cli(*name, "--from", "100", "--limit", "1", "--records", "--json")
    batches = [each for each in shown.messages if each["message_type"] == "batch"]
    records = [each for each in shown.messages if each["message_type"] == "record"]
    assert [(each["base_offset"], each["last_offset"]) for each in batches] == [(99, 101)]
    assert [each["offset"] for each in records] == [99, 100, 101]
    assert {each["message_type"] for each in shown.messages} == {"batch", "record", "summary"}
    text = cli(*name, "--from", "100", "--limit", "1", "--records").text.splitlines()
    assert len(text) < 12
    assert ".log" in text[0]
    rest = [each for each in cli(*name, "--from", "100", "--json").messages if each["message_type"] == "batch"]
    assert [each["base_offset"] for each in rest] == list(range(99, 300, 3))  # on through the segments that follow
    beyond = [each for each in cli(*name, "--from", "299", "--json").messages if each["message_type"] == "batch"]
    assert [each["base_offset"] for each in beyond] == [297]
    indexes = [each for each in cli(*name, "--json").messages if each["message_type"] not in ("batch", "summary")]
    assert indexes, "without --offset the whole folder is shown"
    first = cli(*name, "--from", "0", "--limit", "1", "--json").messages
    assert [(each["message_type"], each.get("base_offset")) for each in first] == [("batch", 0), ("summary", None)]
