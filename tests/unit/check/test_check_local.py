"""Every kind of local damage is found, named and placed; what is normal is not called damage."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.admin import check
from tests.unit.check.building import RECORDS, SETTINGS, TOPIC, Scenario, flip, record, scenario
from tiered.check.check import MAX_FINDINGS, CheckOptions
from tiered.check.findings import NEWER_RELEASE, Finding, Severity
from tiered.errors import ConfigError, NewerFormatError, NotFoundError, UnknownTopicError
from tiered.format.batch import assign_offsets


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path, unsealed=6) as built:
        yield built


def codes(findings: tuple[Finding, ...], severity: Severity = Severity.ERROR) -> set[str]:
    return {finding.code for finding in findings if finding.severity is severity}


def test_a_healthy_log_has_no_findings(log: Scenario) -> None:
    report = check(log.directory, log.store, CheckOptions(read_data=True))
    assert report.findings == ()
    assert report.exit_code == 0
    assert (report.partitions, report.errors, report.warnings) == (1, 0, 0)
    assert report.local_segments == len(log.logs())
    assert report.remote_segments == len(log.rows()) > 2
    assert report.data_bytes_read == report.remote_bytes == sum(row.size for row in log.rows())


def test_a_log_that_is_being_written_is_healthy(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic(TOPIC, create=True, config=SETTINGS)
        for number in range(RECORDS):
            topic.append_many([record(number)])
        assert check(tmp_path / "log", None).findings == ()


Change = Callable[[bytes], bytes | None]


def flipped(position: int) -> Change:
    return lambda data: data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]


def added(layout: str, position: int, delta: int) -> Change:
    """Add to a number in the bytes."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        struct.pack_into(layout, changed, position, struct.unpack_from(layout, data, position)[0] + delta)
        return bytes(changed)

    return change


def moved(leader_epoch: int) -> Change:
    """Let the first batch begin at offset 0 of a leader epoch."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        assign_offsets(changed, 0, leader_epoch)
        return bytes(changed)

    return change


SEGMENT_DAMAGES: dict[str, tuple[str, int, str, Change]] = {
    "a bit of a record": ("log_crc", 1, ".log", flipped(300)),
    "a bit of a length": ("log_torn", 1, ".log", flipped(8)),
    "a bit of the magic": ("log_structure", 1, ".log", flipped(16)),
    "a sealed segment cut": ("log_torn", 0, ".log", lambda data: data[:-10]),
    "zeros after a sealed segment": ("log_torn", 0, ".log", lambda data: data + bytes(100)),
    "a segment gone": ("log_gap", 1, ".log", lambda _: None),
    "offsets that go back": ("log_order", 1, ".log", moved(0)),
    "a leader epoch that falls": ("leader_epoch", 0, ".log", moved(7)),
    "a ragged index": ("offset_index", 0, ".index", lambda data: data + b"abc"),
    "an index entry between two batches": ("offset_index", 0, ".index", added(">i", 4, 1)),
    "an index entry of an earlier offset": ("offset_index", 0, ".index", lambda data: bytes(4) + data[4:]),
    "an index beyond the log": ("offset_index", 0, ".index", lambda data: data + struct.pack(">ii", 10**4, 10**6)),
    "an index of zeros": ("offset_index", 0, ".index", lambda data: bytes(len(data))),
    "a time index that hides records": ("time_index", 0, ".timeindex", added(">q", 0, -1)),
    "a time index beyond the log": (
        "time_index",
        0,
        ".timeindex",
        lambda data: data + struct.pack(">qi", 2**50, 10**5),
    ),
    "a transaction index of version 9": ("txn_index", 0, ".txnindex", lambda _: struct.pack(">hqqqq", 9, 1, 2, 3, 4)),
}
FILE_DAMAGES = [
    ("partition_metadata", f"{TOPIC}-0/partition.metadata", "version: 0\ntopic_id: ???"),
    ("topic_ids", f"{TOPIC}-0/partition.metadata", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"),
    ("leader_epochs", f"{TOPIC}-0/leader-epoch-checkpoint", "0\n2\n0 0\n"),
    ("leader_epochs", f"{TOPIC}-0/leader-epoch-checkpoint", "0\n2\n0 10\n1 5\n"),
    ("checkpoint", "meta.properties", "version=1\n"),
    ("checkpoint", "tiered-offset-checkpoint", "{"),
    ("producer_ids", "tiered-producer-ids.json", "{"),
    ("topics_file", "tiered-topics.json", "[]"),
    ("directory_name", "nonsense/00000000000000000000.log", ""),
]


@pytest.mark.parametrize("name", SEGMENT_DAMAGES)
def test_damage_of_a_segment_is_an_error(log: Scenario, name: str) -> None:
    code, number, suffix, change = SEGMENT_DAMAGES[name]
    path = log.logs()[number].with_suffix(suffix)
    data = change(path.read_bytes() if path.exists() else b"")
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)
    is_an_error(log, code)


@pytest.mark.parametrize(("code", "name", "text"), FILE_DAMAGES)
def test_damage_of_a_small_file_is_an_error(log: Scenario, code: str, name: str, text: str) -> None:
    (log.directory / name).parent.mkdir(exist_ok=True)
    (log.directory / name).write_text(text)
    is_an_error(log, code)


def is_an_error(log: Scenario, code: str) -> None:
    report = check(log.directory, None)
    assert code in codes(report.findings)
    assert report.exit_code == 13
    assert all(finding.message and finding.where for finding in report.findings)


def test_a_flipped_bit_is_placed(log: Scenario) -> None:
    flip(log.logs()[1], 300)
    (finding,) = [finding for finding in check(log.directory, None).findings if finding.code == "log_crc"]
    assert (finding.topic, finding.partition, finding.position) == (TOPIC, 0, 0)
    assert finding.where == str(log.logs()[1])
    assert finding.offset == int(log.logs()[1].stem)
    assert finding.as_json()["severity"] == "error"


def test_a_torn_tail_of_a_log_that_was_not_closed_is_normal(log: Scenario) -> None:
    (log.directory / ".kafka_cleanshutdown").unlink()
    tail = log.logs()[-1]
    tail.write_bytes(tail.read_bytes() + tail.read_bytes()[:40])
    report = check(log.directory, None)
    assert codes(report.findings, Severity.INFO) == {"log_torn"}
    assert report.exit_code == 0


def test_zeros_that_a_crash_left_are_normal_at_the_end_only(log: Scenario) -> None:
    (log.directory / ".kafka_cleanshutdown").unlink()
    tail = log.logs()[-1]
    tail.write_bytes(tail.read_bytes() + bytes(300))
    assert check(log.directory, None).exit_code == 0
    (log.directory / ".kafka_cleanshutdown").touch()
    assert check(log.directory, None).exit_code == 13


@pytest.mark.parametrize(
    ("name", "content", "code", "severity", "exit_code"),
    [
        ("00000000000000000555.index", b"", "orphan_index", Severity.WARNING, 3),
        ("00000000000000000000.log.cleaned", b"", "unfinished_rewrite", Severity.WARNING, 3),
        ("00000000000000000000.log.swap", b"", "unfinished_rewrite", Severity.WARNING, 3),
        ("00000000000000000000.log.deleted", b"x", "deleted_file", Severity.INFO, 0),
        ("00000000000000000000.snapshot", b"0123456789", "producer_snapshot", Severity.WARNING, 3),
        ("../recovery-point-offset-checkpoint", b"junk", "checkpoint", Severity.WARNING, 3),
    ],
)
def test_what_the_next_open_settles_is_no_error(
    log: Scenario, name: str, content: bytes, code: str, severity: Severity, exit_code: int
) -> None:
    log.path(name).write_bytes(content)
    report = check(log.directory, None)
    assert {(finding.code, finding.severity) for finding in report.findings} == {(code, severity)}
    assert report.exit_code == exit_code


@pytest.mark.parametrize("at", [0, -1])
def test_what_is_left_of_a_segment_tells_that_it_is_gone(log: Scenario, at: int) -> None:
    """The next open takes that for the rest of a deletion, and nothing tells of the records any more."""
    lost = [path for path in log.logs() if path.stat().st_size][at]
    lost.unlink()
    found = {
        each.code: each for each in check(log.directory, None).findings if each.code in {"log_gone", "deleted_file"}
    }
    assert [(each.severity, each.where) for each in found.values()] == [(Severity.WARNING, str(lost.parent))]
    assert found["log_gone"].message.startswith(f"{lost.with_suffix('.timeindex').name} names records")
    assert "put it back before anybody opens the log for writing" in found["log_gone"].message
    lost.with_name(lost.name + ".deleted").touch()  # a deletion that was killed on its way
    left = {each.code for each in check(log.directory, None).findings}
    assert ("log_gone" in left, "deleted_file" in left) == (False, True)


def test_a_compacted_topic_may_have_holes(log: Scenario) -> None:
    file = log.directory / "tiered-topics.json"
    file.write_text(file.read_text().replace('"config": {', '"config": {"cleanup.policy": "compact",'))
    log.logs()[1].unlink()
    assert check(log.directory, None).errors == 0


def test_nothing_is_written(log: Scenario) -> None:
    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in log.directory.rglob("*") if path.is_file()}

    flip(log.logs()[0], 200)
    before = contents()
    check(log.directory, log.store, CheckOptions(read_data=True))
    assert contents() == before


def test_findings_are_bounded_and_still_counted(log: Scenario) -> None:
    for number in range(MAX_FINDINGS + 50):
        log.path(f"{number + 10**6:020d}.index").touch()
    report = check(log.directory, None)
    assert len(report.findings) + report.unlisted == report.warnings
    assert report.exit_code == 3
    assert len(report.findings) < 100  # one kind about one directory is listed a few times only


def test_progress_ends_at_the_total(log: Scenario) -> None:
    seen: list[tuple[int, int, str]] = []
    check(log.directory, None, progress=lambda done, total, note: seen.append((done, total, note)))
    total = sum(path.stat().st_size for path in log.logs())
    assert seen[-1] == (total, total, f"{TOPIC}-0")
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)


def test_what_cannot_be_looked_at_is_never_a_clean_report(log: Scenario, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to check"):
        check(None, None)
    with pytest.raises(NotFoundError, match="does not exist"):
        check(tmp_path / "absent", None)
    with pytest.raises(UnknownTopicError, match="no topic 'trains'"):
        check(log.directory, log.store, CheckOptions(topics=("trains",)))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("tiered-topics.json", b'"version": 1', b'"version": 2'),
        ("tiered-offset-checkpoint", b'"version": 1', b'"version": 2'),
        ("tiered-claims.json", b'"version":2', b'"version":3'),
        ("recovery-point-offset-checkpoint", b"0\n", b"1\n"),
        ("meta.properties", b"version=1", b"version=2"),
        ("{tp}/partition.metadata", b"version: 0", b"version: 1"),
        ("{tp}/leader-epoch-checkpoint", b"0\n", b"1\n"),
    ],
)
def test_what_a_newer_release_wrote_is_a_finding(log: Scenario, name: str, old: bytes, new: bytes) -> None:
    """A newer file may be whole: its exit code is another than that of damage, and the rest is checked."""
    path = log.directory / name.format(tp=f"{TOPIC}-0")
    data = path.read_bytes()
    path.write_bytes(data.replace(old, new, 1))
    assert path.read_bytes() != data
    report = check(log.directory, None)
    assert codes(report.findings) == {NEWER_RELEASE}
    assert (report.errors, report.newer, report.exit_code) == (1, 1, 2)
    assert report.local_segments == len(log.logs())


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("tiered-topics.json", b'"version": 1', b'"version": 2'),
        ("tiered-claims.json", b'"version":2', b'"version":3'),
        ("meta.properties", b"version=1", b"version=2"),
    ],
)
def test_what_a_newer_release_wrote_is_not_opened(log: Scenario, name: str, old: bytes, new: bytes) -> None:
    path = log.directory / name
    newer = path.read_bytes().replace(old, new, 1)
    path.write_bytes(newer)
    with pytest.raises(NewerFormatError, match="upgrade"), tiered.open(log.directory, log.url) as again:
        again.topic(TOPIC)
    assert path.read_bytes() == newer
