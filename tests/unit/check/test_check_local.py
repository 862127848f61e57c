"""Every kind of local damage is found, named and placed; what is normal is not called damage."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.admin import check
from tests.unit.check.building import BATCH, RECORDS, SETTINGS, TOPIC, Scenario, flip, record, scenario
from tiered.check.check import MAX_FINDINGS, CheckOptions
from tiered.check.findings import NEWER_RELEASE, Finding, Severity
from tiered.errors import ConfigError, NewerFormatError, NotFoundError, UnknownTopicError
from tiered.format.batch import assign_offsets
from tiered.local.directory.log_directory import LocalLog
from tiered.model import TopicPartition


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path, unsealed=6) as built:
        yield built


def codes(findings: tuple[Finding, ...], severity: Severity = Severity.ERROR) -> set[str]:
    return {finding.code for finding in findings if finding.severity is severity}


def test_a_healthy_log_has_no_findings(log: Scenario) -> None:
    report = check(log.directory, log.store, CheckOptions(read_data=True, orphans=True))
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


def _flip_record(log: Scenario) -> str:
    flip(log.logs()[1], 300)
    return "log_crc"


def _flip_length(log: Scenario) -> str:
    flip(log.logs()[1], 8)
    return "log_torn"


def _flip_magic(log: Scenario) -> str:
    flip(log.logs()[1], 16)
    return "log_structure"


def _cut_sealed(log: Scenario) -> str:
    path = log.logs()[0]
    path.write_bytes(path.read_bytes()[:-10])
    return "log_torn"


def _zeros_behind_sealed(log: Scenario) -> str:
    path = log.logs()[0]
    path.write_bytes(path.read_bytes() + bytes(100))
    return "log_torn"


def _lose_segment(log: Scenario) -> str:
    log.logs()[1].unlink()
    return "log_gap"


def _offsets_back(log: Scenario) -> str:
    path = log.logs()[1]
    data = bytearray(path.read_bytes())
    assign_offsets(data, 0, struct.unpack_from(">i", data, 12)[0])
    path.write_bytes(data)
    return "log_order"


def _epoch_back(log: Scenario) -> str:
    path = log.logs()[0]
    data = bytearray(path.read_bytes())
    assign_offsets(data, 0, 7)
    path.write_bytes(data)
    return "leader_epoch"


def _ragged_index(log: Scenario) -> str:
    path = log.logs()[0].with_suffix(".index")
    path.write_bytes(path.read_bytes() + b"abc")
    return "offset_index"


def _lying_index(log: Scenario) -> str:
    path = log.logs()[0].with_suffix(".index")
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 4, struct.unpack_from(">i", data, 4)[0] + 1)
    path.write_bytes(data)
    return "offset_index"


def _late_index(log: Scenario) -> str:
    path = log.logs()[0].with_suffix(".index")
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 0, 0)
    path.write_bytes(data)
    return "offset_index"


def _index_beyond_log(log: Scenario) -> str:
    path = log.logs()[0].with_suffix(".index")
    path.write_bytes(path.read_bytes() + struct.pack(">ii", 10_000, 1_000_000))
    return "offset_index"


def _zeroed_index(log: Scenario) -> str:
    path = log.logs()[0].with_suffix(".index")
    path.write_bytes(bytes(len(path.read_bytes())))
    return "offset_index"


def _time_index_hides_records(log: Scenario) -> str:
    path = log.logs()[0].with_suffix(".timeindex")
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 0, struct.unpack_from(">q", data, 0)[0] - 1)
    path.write_bytes(data)
    return "time_index"


def _time_index_beyond_log(log: Scenario) -> str:
    path = log.logs()[0].with_suffix(".timeindex")
    path.write_bytes(path.read_bytes() + struct.pack(">qi", 2**50, 100_000))
    return "time_index"


def _txn_index(log: Scenario) -> str:
    log.logs()[0].with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 9, 1, 2, 3, 4))
    return "txn_index"


def _partition_metadata(log: Scenario) -> str:
    log.path("partition.metadata").write_text("version: 0\ntopic_id: ???")
    return "partition_metadata"


def _leader_epochs(log: Scenario) -> str:
    log.path("leader-epoch-checkpoint").write_text("0\n2\n0 0\n")
    return "leader_epochs"


def _leader_epoch_order(log: Scenario) -> str:
    log.path("leader-epoch-checkpoint").write_text("0\n2\n0 10\n1 5\n")
    return "leader_epochs"


def _meta_properties(log: Scenario) -> str:
    (log.directory / "meta.properties").write_text("version=1\n")
    return "checkpoint"


def _upload_checkpoint(log: Scenario) -> str:
    (log.directory / "tiered-offset-checkpoint").write_text("{")
    return "checkpoint"


def _producer_ids(log: Scenario) -> str:
    (log.directory / "tiered-producer-ids.json").write_text("{")
    return "producer_ids"


def _topics_file(log: Scenario) -> str:
    (log.directory / "tiered-topics.json").write_text("[]")
    return "topics_file"


def _stray_directory(log: Scenario) -> str:
    (log.directory / "nonsense").mkdir()
    (log.directory / "nonsense" / "00000000000000000000.log").touch()
    return "directory_name"


@pytest.mark.parametrize(
    "damage",
    [
        _flip_record,
        _flip_length,
        _flip_magic,
        _cut_sealed,
        _zeros_behind_sealed,
        _lose_segment,
        _offsets_back,
        _epoch_back,
        _ragged_index,
        _lying_index,
        _late_index,
        _index_beyond_log,
        _zeroed_index,
        _time_index_hides_records,
        _time_index_beyond_log,
        _txn_index,
        _partition_metadata,
        _leader_epochs,
        _leader_epoch_order,
        _meta_properties,
        _upload_checkpoint,
        _producer_ids,
        _topics_file,
        _stray_directory,
    ],
)
def test_damage_is_an_error(log: Scenario, damage: Callable[[Scenario], str]) -> None:
    expected = damage(log)
    report = check(log.directory, None)
    assert expected in codes(report.findings)
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
    assert found["log_gone"].message.startswith(f"{lost.with_suffix('.timeindex').name} tells of records")
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
    check(log.directory, log.store, CheckOptions(read_data=True, orphans=True))
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


@pytest.mark.parametrize(("suffix", "code"), [(".index", "offset_index_lost"), (".timeindex", "time_index_lost")])
@pytest.mark.parametrize("number", [0, -2])
def test_an_index_that_is_gone_is_named_and_the_next_open_makes_it_anew(
    log: Scenario, suffix: str, code: str, number: int
) -> None:
    gone = [path for path in log.logs() if path.stat().st_size][number].with_suffix(suffix)
    before = gone.read_bytes()
    gone.unlink()
    report = check(log.directory, None)
    assert (report.exit_code, [(found.code, found.offset) for found in report.findings]) == (
        3,
        [(code, int(gone.stem))],
    )
    assert gone.name in report.findings[0].message
    with LocalLog.open(log.directory) as opened:
        assert len(list(opened.partition(TopicPartition(TOPIC, 0)).read_batches(0))) > RECORDS // BATCH
    assert gone.read_bytes() == before
    assert check(log.directory, None).exit_code == 0
