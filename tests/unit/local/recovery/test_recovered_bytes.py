"""What a recovery has cut, kept aside and counted is durable when the open is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.bench import CaseBench
from tests.unit.local.counting import CountingFiles
from tiered.format.local_names import log_name, txn_index_name
from tiered.format.segment_indexes import encode_txns
from tiered.model import AbortedTxn


def torn(path: Path, *, flushed: int, behind: int) -> CaseBench:
    """The last of ``behind`` batches above the recovery point is cut short; then the process is gone."""
    bench = CaseBench(path)
    bench.fill(flushed)
    bench.partition.flush()
    bench.log.checkpoint()
    bench.fill(behind)
    bench.kill()
    log = bench.folder / log_name(0)
    log.write_bytes(log.read_bytes()[:-9])
    return bench


def reopened(bench: CaseBench) -> list[tuple[str, str]]:
    """What the open did to the files of the partition, in its order."""
    bench.files = CountingFiles()
    bench.open()
    folder = bench.folder
    return [(name, path.name) for name, path in bench.files.effects if folder in (path, path.parent)]


@pytest.mark.parametrize("behind", [1, 2])
def test_a_cut_is_durable(tmp_path: Path, behind: int) -> None:
    """Also where nothing is left above the recovery point, so that no flush follows."""
    bench = torn(tmp_path, flushed=6, behind=behind)
    effects = reopened(bench)
    assert bench.partition.positions().flushed_offset == 5 + behind
    cut = effects.index(("truncate", log_name(0)))
    assert effects[cut + 1] == ("sync", log_name(0))


def test_the_torn_bytes_are_durable_before_they_are_cut(tmp_path: Path) -> None:
    bench = torn(tmp_path, flushed=6, behind=1)
    effects = reopened(bench)
    (copy,) = bench.folder.glob("*.torn-*")
    cut = effects.index(("truncate", log_name(0)))
    assert [name for name, path in effects[:cut] if path == copy.name] == ["open", "write", "sync"]
    assert effects.index(("sync", copy.name)) < effects.index(("sync_directory", bench.folder.name)) < cut


def test_sealed_segments_above_the_recovery_point_are_durable(tmp_path: Path) -> None:
    """Nobody holds them open any more; what is aborted in them is made durable with them."""
    bench = CaseBench(tmp_path, per_segment=2)
    bench.fill(8)
    assert bench.bases == [0, 2, 4, 6]
    bench.kill()
    (bench.directory / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    aborted = bench.folder / txn_index_name(2)
    aborted.write_bytes(encode_txns([AbortedTxn(1, 2, 3, 3)]))
    effects = reopened(bench)
    assert bench.partition.positions().flushed_offset == 8
    synced = {name for operation, name in effects if operation == "sync"}
    assert {name for name in synced if name.endswith(".log")} == {log_name(base) for base in (2, 4, 6)}
    assert aborted.name in synced
