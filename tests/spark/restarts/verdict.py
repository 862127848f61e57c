"""What a log holds after all restarts, beside what was to be written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.admin import check
from tiered.check.check import CheckOptions
from tiered.config import DAY_MS
from tiered.format.keys import Role, parse_staged_key
from tiered.reader import open_reader
from tiered.remote.catalog import Catalog
from tiered.remote.gc.orphans import sweep
from tiered.remote.topics import load_topic
from tiered.store.base import Store
from tiered.store.driver import drive
from tiered.store.steps import list_all

SHOWN = 5
"""Findings that a verdict shows."""


@dataclass(frozen=True)
class Verdict:
    """Counts of rows and of staged ``.log`` objects; ``findings`` are those of ``check``, but for orphans. ``unswept``:
    orphans that a sweep leaves."""

    rows: int
    missing: int
    extra: int
    gaps: int
    segments: int
    staged: int
    unswept: int
    findings: tuple[str, ...]

    @property
    def orphans(self) -> int:
        """Staged segments that no row names."""
        return self.staged - self.segments

    def holds(self, most_orphans: int) -> bool:
        """Whether everything is as it must be."""
        wrong = self.missing or self.extra or self.gaps or self.unswept or self.findings
        return not wrong and 0 <= self.orphans <= most_orphans

    def __str__(self) -> str:
        found = "; ".join(self.findings[:SHOWN]) or "none"
        return (
            f"rows {self.rows}, missing {self.missing}, extra {self.extra}, gaps {self.gaps}; segments {self.segments} "
            f"and {self.orphans} orphans, {self.unswept} after a sweep; findings of check {len(self.findings)}: {found}"
        )


def judge(store: Store, keys: Sequence[str], topic: str = "flights") -> Verdict:
    """Reads all of ``topic`` and compares its keys with ``keys``; values begin with their key. Sweeps at the end."""
    found: Counter[str] = Counter()
    gaps = 0
    with open_reader(store.url) as reader:
        ends: dict[int, int] = {}
        for record in reader.topic(topic).read():
            key, value = (record.key or b"").decode(), (record.value or b"").decode()
            found[key if value.startswith(f"{key}:") else f"{key}={value}"] += 1
            gaps += record.offset != ends.get(record.partition, 0)
            ends[record.partition] = record.offset + 1
    report = check(None, store, CheckOptions(read_data=True))
    wanted = Counter(keys)
    staged = len(_staged(store))
    _sweep(store, topic)
    return Verdict(
        rows=found.total(),
        missing=(wanted - found).total(),
        extra=(found - wanted).total(),
        gaps=gaps,
        segments=report.remote_segments,
        staged=staged,
        unswept=len(_staged(store)) - report.remote_segments,
        findings=tuple(str(finding) for finding in report.findings),
    )


def _sweep(store: Store, topic: str) -> None:
    """Collect like ``tiered maintain --only collect --orphans``, without the time of grace."""
    entry = drive(store, load_topic(topic))
    assert entry is not None
    for partition in range(entry.partitions):
        catalog = Catalog(entry.topic_id, partition, topic)
        drive(store, catalog.claim(Role.MAINTAINER, "verdict"))
        drive(store, sweep(catalog, delete=True, grace_ms=-DAY_MS))


def _staged(store: Store) -> list[str]:
    """Keys of the ``.log`` objects that sinks have staged."""
    listed = drive(store, list_all(""))
    return [entry.key for entry in listed if parse_staged_key(entry.key) and entry.key.endswith(".log")]
