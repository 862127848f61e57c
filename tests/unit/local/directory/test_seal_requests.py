"""``tiered-seal-request``: carried out once, by the writer or by the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.bench import CaseBench
from tests.unit.local.opening import run_task
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import SealRequest


@pytest.mark.parametrize("reopened", [False, True])
def test_a_request_is_carried_out_once(tmp_path: Path, reopened: bool) -> None:
    bench = CaseBench(tmp_path / "log", per_segment=100)
    for sealed in (1, 2):
        bench.fill(3)
        SealRequest(bench.directory, PosixFiles()).write()
        if reopened:
            bench.reopen()
        run_task(bench.log.tasks, "uploads")
        bench.fill(3)
        run_task(bench.log.tasks, "uploads")
        assert len(bench.partition.sealed_segments()) == sealed
