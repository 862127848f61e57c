"""Random logs, random rounds, power cuts at random effects: the newest record of every key is always there."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from tests.support.faulty_files import PowerCut, on_nth
from tests.unit.local.bench import TP
from tests.unit.local.cleaning.cleaning_bench import CleaningBench
from tiered.config import DAY_MS
from tiered.errors import TieredError
from tiered.model import NewRecord

KEYS = "abcdef"
STEPS = 80


class Story:
    """One bench and what it must hold. ``newest``: offset and value of each key's last record."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.settings = {"cleaner_dedupe_buffer_bytes": self.dice.choice([1024, 1 << 20])}
        self.bench = CleaningBench(directory, per_segment=self.dice.randint(2, 6), file_delete_delay_ms=1000)
        self.bench.log.close()
        self.bench.open(**self.settings)
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}
        self.end = 0

    def append(self) -> None:
        records = []
        for _ in range(self.dice.randint(1, 3)):
            value = None if self.dice.random() < 0.2 else b"%d" % self.dice.randint(0, 99)
            records.append(NewRecord(value, self.dice.choice(KEYS).encode()))
        offset = self.bench.partition.append(records).offset
        assert offset == self.end
        for at, record in enumerate(records):
            assert record.key is not None
            self.newest[record.key] = (offset + at, record.value)
        self.end += len(records)

    def clean(self) -> None:
        self.bench.partition.roll()
        self.bench.partition.flush()
        self.bench.clean()

    def clean_in_a_storm(self) -> None:
        self.bench.partition.roll()
        self.bench.partition.flush()
        self.bench.files.fail = on_nth(self.dice.randint(1, 60), "*", PowerCut)
        try:
            self.bench.clean()
        except PowerCut:
            self.bench.files.cut_power(self.dice)
            self.bench.kill()
            self.bench.open(**self.settings)
        self.bench.files.fail = None

    def clean_on_a_bad_disk(self) -> None:
        self.bench.partition.roll()
        self.bench.partition.flush()
        operation = self.dice.choice(["open", "write", "sync", "rename", "unlink", "sync_directory"])
        self.bench.files.fail = on_nth(self.dice.randint(1, 4), operation, self.dice.choice([5, 28]))
        with contextlib.suppress(TieredError):
            self.bench.clean()
        self.bench.files.fail = None
        if self.bench.partition.context.offline is not None:
            self.bench.kill()
            self.bench.open(**self.settings)

    def wait(self) -> None:
        self.bench.clock.advance(DAY_MS / 1000)
        self.bench.log.tick()

    def check(self) -> None:
        found = self.bench.records()
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        newest = {record.key: (record.offset, record.value) for record in found}
        for key, (offset, value) in self.newest.items():
            if value is None and key not in newest:
                continue  # the tombstone's time is over, and nothing older came back
            assert newest[key] == (offset, value)
        assert self.bench.partition.positions().end_offset == self.end


@pytest.mark.parametrize("seed", range(8))
def test_nothing_that_is_newest_is_ever_lost_and_nothing_that_went_comes_back(tmp_path: Path, seed: int) -> None:
    story = Story(tmp_path / "log", seed)
    acts = [story.append] * 8 + [story.clean, story.clean, story.clean_in_a_storm, story.clean_on_a_bad_disk]
    for _ in range(STEPS):
        story.dice.choice([*acts, story.wait])()
        story.check()
    story.bench.reopen()
    story.check()
    assert story.bench.log.partition(TP).positions().end_offset == story.end
