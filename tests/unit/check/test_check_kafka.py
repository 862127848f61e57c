"""Directories that a real broker wrote are healthy; those that were damaged by hand are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.admin import check
from tiered.check.findings import Finding, Severity
from tiered.check.local import LocalCheck
from tiered.errors import CorruptionError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.model import TopicPartition


@pytest.mark.parametrize(
    "root", ["main", "compact-before", "compact-after2", "unclean-kill/before", "unclean-kill/after"]
)
def test_what_kafka_wrote_is_healthy(kafka_fixtures: Path, root: str) -> None:
    report = check(kafka_fixtures / root, None)
    assert [str(finding) for finding in report.findings if finding.severity is not Severity.INFO] == []
    assert report.local_segments > 1


@pytest.mark.parametrize("left", ["all but the last", "the directory"])
def test_a_log_that_ends_below_its_recovery_point_is_told(kafka_fixtures: Path, tmp_path: Path, left: str) -> None:
    shutil.copytree(kafka_fixtures / "main", tmp_path / "log", copy_function=shutil.copyfile)
    (tmp_path / "log" / "codec-lz4-0").chmod(0o755)
    last = max((tmp_path / "log" / "codec-lz4-0").glob("*.log"))
    for path in (tmp_path / "log" / "codec-lz4-0").glob("*" if left == "the directory" else f"{last.stem}.*"):
        path.unlink()
    report = check(tmp_path / "log", None)
    [found] = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    end = 0 if left == "the directory" else int(last.stem)
    assert (found.code, found.severity, found.topic, found.partition) == ("log_end", Severity.WARNING, "codec-lz4", 0)
    assert (found.offset, f"ends at offset {end}, and was flushed to the disk up to 208" in found.message) == (
        end,
        True,
    )
    assert report.exit_code == 3


@pytest.mark.parametrize(
    ("partition", "code", "severity"),
    [
        ("u-flipped-bit-0", "log_crc", Severity.ERROR),
        ("u-torn-0", "log_torn", Severity.INFO),
        ("u-trailing-zeros-0", "log_torn", Severity.INFO),
        ("u-index-truncated-0", "offset_index", Severity.ERROR),
        ("u-old-index-ragged-0", "offset_index", Severity.ERROR),
        ("u-old-index-zeroed-0", "offset_index", Severity.ERROR),
        ("u-timeindex-garbage-0", "time_index", Severity.ERROR),
        ("u-snapshot-bad-0", "producer_snapshot", Severity.WARNING),
    ],
)
def test_what_was_damaged_is_found(kafka_fixtures: Path, partition: str, code: str, severity: Severity) -> None:
    report = check(kafka_fixtures / "unclean-damaged/before", None)
    topic = partition.removesuffix("-0")
    assert (code, severity) in {
        (finding.code, finding.severity) for finding in report.findings if finding.topic == topic
    }


def directory_of(kafka_fixtures: Path, tmp_path: Path, *partitions: str) -> Path:
    """These partitions of the main directory, to be changed."""
    directory = tmp_path / "log"
    for name in partitions:
        shutil.copytree(kafka_fixtures / "main" / name, directory / name, copy_function=shutil.copyfile)
        (directory / name).chmod(0o755)
    return directory


def judged(directory: Path) -> list[tuple[str, Severity]]:
    return [(each.code, each.severity) for each in check(directory, None).findings]


def test_a_marker_whose_transaction_retention_and_the_cleaner_took_is_healthy(
    kafka_fixtures: Path, tmp_path: Path
) -> None:
    """The cleaner drops the entry with the last aborted record; that record was in the first segment."""
    directory = directory_of(kafka_fixtures, tmp_path, "compact-txn-0")
    for path in (directory / "compact-txn-0").glob(f"{0:020d}.*"):
        path.unlink()
    assert {severity for _, severity in judged(directory)} <= {Severity.INFO}


def test_an_exchange_that_a_killed_broker_left_is_told_and_no_damage(kafka_fixtures: Path, tmp_path: Path) -> None:
    directory = directory_of(kafka_fixtures, tmp_path, "compact-txn-0")
    for path in (directory / "compact-txn-0").glob(f"{0:020d}.*"):
        path.rename(path.with_name(f"{path.name}.swap"))
    told = {each for each in judged(directory) if each[1] is not Severity.INFO}
    assert told == {("unfinished_rewrite", Severity.WARNING)}


def test_two_topics_of_one_name_are_told_and_the_fewer_partitions_out_of_service(
    kafka_fixtures: Path, tmp_path: Path
) -> None:
    """A broker was away while the topic was deleted and made again. An open for writing dropped partitions 0 and 1 in
    silence, reads showed the records of both topics as those of one.
    """
    directory = directory_of(kafka_fixtures, tmp_path, "orders-0", "orders-1", "orders-2")
    (directory / "orders-1" / "partition.metadata").chmod(0o644)
    (directory / "orders-1" / "partition.metadata").write_bytes(
        (kafka_fixtures / "main" / "txn-0" / "partition.metadata").read_bytes()
    )
    [told] = [each for each in check(directory, None).findings if each.severity is not Severity.INFO]
    assert (told.code, told.severity, told.topic, told.partition) == ("topic_ids", Severity.ERROR, "orders", 1)
    other = TopicPartition("orders", 1)
    with LogView.open(directory) as view:
        positions, unreadable = view.positions()
        assert [(tp.partition, at.end_offset) for tp, at in sorted(positions.items())] == [(0, 10), (2, 10)]
        assert [*unreadable] == [other]
        with pytest.raises(CorruptionError, match="names topic id"):
            view.partition(other)
    with LocalLog.open(directory) as log:
        assert [*log.out_of_service] == [other]
        with pytest.raises(CorruptionError, match="names topic id"):
            log.partition(other)


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_a_segment_that_is_missing_between_whole_ones_is_told(kafka_fixtures: Path, tmp_path: Path, left: str) -> None:
    """The disk does not say whether a topic is compacted. Unless the cleaner names it, a gap is a lost file."""
    directory = directory_of(kafka_fixtures, tmp_path, "txn-0", "compact-keep-0")
    for path in (directory / "txn-0").glob(f"{130:020d}.*"):
        path.unlink()
    if left == "an empty file":
        (directory / "txn-0" / f"{130:020d}.log").touch()
    (directory / "cleaner-offset-checkpoint").write_text("0\n1\ncompact-keep 0 595\n")
    [told] = [each for each in check(directory, None).findings if each.code == "log_gap"]
    assert (told.severity, told.topic, told.offset) == (Severity.WARNING, "txn", 130)
    assert "offsets 130 to 200 are missing" in told.message
    (directory / "cleaner-offset-checkpoint").write_text("0\n2\ncompact-keep 0 595\ntxn 0 200\n")
    assert [each for each in check(directory, None).findings if each.code == "log_gap"] == []


@pytest.mark.parametrize("ours", [False, True])
def test_what_retention_takes_while_it_is_looked_at_is_no_gap(kafka_fixtures: Path, tmp_path: Path, ours: bool) -> None:
    """The first segment is read, then it goes, and the next two with it."""
    directory = directory_of(kafka_fixtures, tmp_path, "txn-0")

    class Retaining(PosixFiles):
        def read(self, path: Path) -> bytes:
            if path.name == f"{57:020d}.index":
                for base in (0, 57, 130):
                    for file in path.parent.glob(f"{base:020d}.*"):
                        file.unlink()
            return super().read(path)

    look = LocalCheck(directory, Retaining(), compacted=lambda _: not ours, topics=frozenset())
    seen = [one for together in look.run() for one in together if isinstance(one, Finding)]
    assert [str(each) for each in seen if each.severity is not Severity.INFO] == []
    assert [each.code for each in seen if each.code == "vanished"] == ["vanished", "vanished"]
