"""The broker's own producer snapshots, and which partitions are not compared."""

from __future__ import annotations

from pathlib import Path

from tests.golden.fixtures import MAIN, base_offset
from tiered.errors import CorruptionError
from tiered.format.producer_snapshot import decode_snapshot

MADE_MS = 1_795_264_200_000
"""When the broker ran. Record timestamps are years older, so that producers without markers expire at a restart."""

LEFT_ALONE = {"__cluster_metadata-0"}


def snapshots_of(directory: Path) -> dict[int, bytes]:
    found = {}
    for path in sorted(directory.glob("*.snapshot")):
        try:
            decode_snapshot(path.read_bytes())
        except CorruptionError:
            assert "u-snapshot-bad" in path.parent.name
            continue
        found[base_offset(path)] = path.read_bytes()
    return found


CLEANED = ("compact-after1", "compact-after2")


def is_cleaned(root: str, partition: str) -> bool:
    return partition.startswith("compact-") and (root in CLEANED or root == MAIN)
