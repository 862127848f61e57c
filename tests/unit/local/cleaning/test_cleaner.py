"""Compaction on disk: what is chosen, what stays, what stops it, and what readers see meanwhile."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from tests.support.faulty_files import PowerCut, on_nth
from tests.support.given import append_given, move_start
from tests.unit.local.bench import TP
from tests.unit.local.cleaning.cleaning_bench import CLEANED, DIRTY, KEYED_BYTES, OTHER, CleaningBench, dirty, stored
from tests.unit.local.opening import run_task
from tiered.errors import ConfigError, UnknownTopicError
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.checkpoint import encode_offsets
from tiered.local.cleaning.cleaner import CleanerFigures
from tiered.local.cleaning.subjects import NOT_COMPACTED, TIERED, CleanerCheckpoint, CleaningStatus, preview
from tiered.local.disk.directory_files import CLEANER_NAME
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import START_MS


@pytest.fixture
def bench(tmp_path: Path) -> CleaningBench:
    return CleaningBench(tmp_path / "log", file_delete_delay_ms=5000)


def test_the_newest_record_of_every_key_stays_and_offsets_do_not_change(bench: CleaningBench) -> None:
    report = dirty(bench).clean()
    assert report is not None
    assert (bench.pairs, bench.offsets(0)) == (CLEANED, [3, 6, 7, 8])
    assert (report.first_dirty, report.end_offset, report.keys) == (0, 9, 4)
    assert (report.records_read, report.records_written) == (9, 4)
    assert bench.clean() is None
    bench.reopen()
    assert (bench.pairs, bench.offsets(0)) == (CLEANED, [3, 6, 7, 8])
    assert bench.partition.append([NewRecord(b"x", b"e")]).offset == 9


def test_the_active_segment_is_never_touched(bench: CleaningBench) -> None:
    bench.put("a1", "a2", "a3", "a4", "a5")
    bench.clean()
    assert bench.pairs == ["a3", "a4", "a5"]  # the map ends before the active segment: a3 is its newest a


def test_what_is_not_durable_supersedes_nothing(bench: CleaningBench) -> None:
    dirty(bench)
    bench.files.fail = lambda operation, path: errno.EIO if operation == "sync" and path.suffix == ".log" else 0
    bench.append(b"5", key=b"a")
    bench.partition.durability.flushed = 6  # the third segment is sealed, and its fsync has not returned
    bench.files.fail = None
    bench.clean()
    assert bench.pairs == ["c1", "b2", "a3", "d1", "a4", "b3", "a5"]


def test_records_of_an_open_transaction_and_behind_it_are_not_cleaned(bench: CleaningBench) -> None:
    dirty(bench)
    batch = encode_batch([NewRecord(b"t", b"a", 5)], base_offset=9, producer=BatchProducer(7, 0, 0, transactional=True))
    append_given(bench.partition, batch)
    bench.seal()
    bench.put("a8")
    bench.seal()
    for _ in range(2):
        bench.log.cleaner.run(bench.clock.now_ms())
        assert bench.pairs == [*CLEANED, "at", "a8"]


def test_a_tiny_map_takes_several_rounds(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "log", per_segment=5)
    keys = "abcdefghij"
    bench.put(*[f"{key}{i}" for i in range(4) for key in keys])
    bench.seal()
    bench.log.close()
    bench.open(cleaner_dedupe_buffer_bytes=1024)  # four keys
    rounds = 0
    while (report := bench.clean()) is not None:
        assert report.keys <= 4
        rounds += 1
    assert rounds > 5
    assert bench.pairs == [f"{key}3" for key in keys]


def test_segments_are_merged_up_to_segment_bytes_and_keep_the_age_of_the_last(bench: CleaningBench) -> None:
    for pair in DIRTY:
        bench.put(pair)
        bench.clock.advance(10)
    bench.seal()
    ages = [segment.appended_ms for segment in bench.partition.sealed]
    bench.clean()
    assert bench.bases == [0, 3, 6, 9]  # each group was full before
    assert [segment.appended_ms for segment in bench.partition.sealed] == ages
    bench.put("c9")
    bench.seal()
    bench.clean()
    assert bench.bases == [0, 6, 9, 10]  # the first was empty, the second nearly so
    assert [segment.appended_ms for segment in bench.partition.sealed] == [*ages[1:], ages[-1] + 10_000]
    assert bench.pairs == ["d1", "a4", "b3", "c9"]


def test_a_cut_lowers_the_checkpoint_and_a_deleted_topic_leaves_it(bench: CleaningBench) -> None:
    dirty(bench).clean()
    assert stored(bench) == {TP: 9}
    bench.partition.truncate_to(7)
    assert stored(bench) == {TP: 7}
    bench.log.delete_topic(TP.topic)
    assert stored(bench) == {}


def test_other_entries_stay_unknown_ones_go_and_one_outside_the_log_is_reset(bench: CleaningBench) -> None:
    bench.log.create_topic(OTHER.topic, 1)
    dirty(bench).log.close()
    known = {TP: 99, OTHER: 4, TopicPartition("gone", 0): 7}
    (bench.directory / CLEANER_NAME).write_text(encode_offsets(known))
    bench.open()
    bench.log.partition(TP)
    bench.log.alter_topic(
        TP.topic, {"min.cleanable.dirty.ratio": 1.0}
    )  # it is not filthy enough: only the reset is due
    bench.log.cleaner.run(bench.clock.now_ms())
    assert stored(bench) == {TP: 0, OTHER: 4}
    assert bench.pairs == [*DIRTY]


def test_the_task_obeys_ratio_switch_and_period(bench: CleaningBench) -> None:
    dirty(bench).log.close()
    bench.open(cleaner_enabled=False)
    run_task(bench.log.tasks, "cleaning")
    assert bench.pairs == [*DIRTY]
    bench.log.close()
    bench.open()
    bench.log.partition(TP)
    bench.log.tick()
    assert bench.pairs == [*DIRTY]  # log.cleaner.backoff.ms is not over
    bench.clock.advance(15)
    bench.log.tick()
    assert bench.pairs == CLEANED


def previewed(bench: CleaningBench, tp: TopicPartition = TP) -> CleaningStatus:
    checkpoint = CleanerCheckpoint(bench.directory, bench.files)
    return preview(bench.log.partition(tp), checkpoint, bench.files, bench.clock)


def test_why_a_partition_is_not_cleaned(bench: CleaningBench) -> None:
    dirty(bench)
    bench.log.create_topic(OTHER.topic, 1)
    assert previewed(bench, OTHER).refused == NOT_COMPACTED
    bench.partition.set_uploaded(3, 1)
    assert previewed(bench).refused == TIERED
    with pytest.raises(ConfigError, match="the bucket's"):
        bench.clean()
    bench.log.cleaner.run(bench.clock.now_ms())
    assert bench.pairs == [*DIRTY]
    with pytest.raises(UnknownTopicError):
        bench.log.cleaner.clean(TopicPartition("none", 3))


def test_a_preview_tells_what_a_round_would_do(bench: CleaningBench) -> None:
    status = previewed(dirty(bench))
    assert status.candidate is not None
    assert (status.candidate.first_dirty, status.candidate.first_uncleanable, status.candidate.ratio) == (0, 9, 1.0)
    assert status.groups == ((0,), (3,), (6,))
    bench.clean()
    assert previewed(bench).groups == ()


def _logs(bench: CleaningBench) -> dict[int, tuple[int, bytes]]:
    """File and bytes of each segment, by its base offset."""
    found = sorted((bench.directory / str(TP)).glob("*.log"))
    return {int(path.stem): (path.stat().st_ino, path.read_bytes()) for path in found}


def test_a_segment_that_keeps_everything_stays_where_it_is(bench: CleaningBench) -> None:
    bench.put("a1", "b1", "c1", "d1", "e1", "a2", "f1", "g1", "h1")
    bench.seal()
    before = _logs(bench)
    report = bench.clean()
    after = _logs(bench)
    assert report is not None
    assert bench.pairs == ["b1", "c1", "d1", "e1", "a2", "f1", "g1", "h1"]
    assert (report.groups, report.records_written) == ([(0,), (3,), (6,)], 8)
    assert {base for base in before if before[base] == after.get(base)} == before.keys() - {0}
    assert bench.clean() is None
    assert bench.partition.end_offset == 9


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_what_stands_before_the_first_change_is_copied(bench: CleaningBench, changed: int) -> None:
    keys = ["x", "y", "z"]
    bench.put(*[f"{key}1" for key in keys])
    bench.put(f"{keys[changed]}2", "d1", "e1")
    bench.seal()
    batches = [_logs(bench)[0][1][at * KEYED_BYTES : (at + 1) * KEYED_BYTES] for at in range(3)]
    report = bench.clean()
    assert report is not None
    assert report.groups == [(0,), (3,)]
    del batches[changed]
    assert _logs(bench)[0][1] == b"".join(batches)
    assert len(bench.pairs) == 5
    bench.log.close()
    bench.open()
    assert len(bench.pairs) == 5


def test_a_round_as_kafka_counts_it(bench: CleaningBench) -> None:
    assert bench.log.cleaner.figures() == CleanerFigures()
    dirty(bench).log.close()
    bench.open(cleaner_dedupe_buffer_bytes=2000, cleaner_max_bytes_per_second=KEYED_BYTES)
    bench.log.partition(TP)
    bench.clock.advance(60)
    status = run_task(bench.log.tasks, "cleaning")
    found = bench.log.cleaner.figures()
    read, written = len(DIRTY) * KEYED_BYTES, 4 * KEYED_BYTES
    assert (found.rounds, found.bytes_read, found.bytes_written) == (1, read, written)
    assert found.recopy_ratio == written / read
    assert found.max_buffer_utilization == 4 / 9  # keys; of ten entries nine are used
    assert found.max_dirty_ratio == 0.0  # the last look found all of it clean
    assert found.max_clean_seconds == 2 * len(DIRTY) + 4  # a second for each batch: all are read twice, four written
    assert found.last_run_ms == START_MS + 60_000
    assert (status.partitions, status.bytes) == (1, read + written)
    assert status.last_duration_ms == pytest.approx(found.max_clean_seconds * 1000, abs=1)
    assert (found.uncleanable_partitions, found.at_work) == (0, 0)


BEFORE = ("a1", "b1", "a2", "c1", "b2", "a3", "d1", "a4", "b3", "c-")


def test_case_79_compaction_races_with_retention(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "log", cleanup_policy="compact,delete", segment_bytes=2000)
    for at in (0, 3, 6):
        bench.put(*BEFORE[at : at + 3])
        bench.seal()
    renamed: Counter[str] = Counter()
    retained = False

    def race(operation: str, path: Path) -> int:
        nonlocal retained
        if operation == "touch" and not retained:
            retained = True
            move_start(bench.partition, 3)
            bench.partition.apply_retention()
        if operation == "rename" and path.name.endswith((".log", ".index")):
            renamed[path.name] += 1
        return 0

    bench.files.fail = race
    bench.clean()
    assert set(renamed.values()) == {1}
    assert {name for name in renamed if name.endswith(".log")} == {f"{base:020d}.log" for base in (0, 3, 6)}
    assert len(bench.bases) == 2
    assert bench.records()[0].offset >= 3
    bench.reopen()
    assert len(bench.bases) == 2
    assert bench.newest == {"a": "4", "b": "3", "c": "1", "d": "1"}
    assert (bench.directory / CLEANER_NAME).exists()
    assert bench.log.cleaner.checkpoint.offset(TP) == 9


def test_case_77_a_copy_that_an_earlier_round_left_undoes_no_swap_behind_it(tmp_path: Path) -> None:
    """A ``.cleaned`` undoes every ``.swap`` at or above it, also one whose old files are on their way out already."""
    n, cut = 0, True
    while cut:
        n += 1
        bench = dirty(CleaningBench(tmp_path / str(n)))
        bench.put("e1")
        newest = bench.newest
        (bench.folder / "00000000000000000001.log.cleaned").write_bytes(b"the disk was full")
        bench.files.fail = on_nth(n, "*", PowerCut)
        try:
            bench.clean()
            cut = False
        except PowerCut:
            bench.files.fail = None
            bench.kill()
            bench.open()
        assert bench.newest == newest, n
    assert n > 60
    assert bench.names(".cleaned") == []
