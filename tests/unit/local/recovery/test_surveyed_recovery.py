"""Recovery of damaged files by runs of batches, by either twin, and batch by batch: the same, byte for byte."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.format.twins import compiled
from tiered.format import kernels, pure_kernels
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.batch_scanner import walk_headers
from tiered.format.codecs import Codec
from tiered.format.local_names import log_name
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.partition_files import LeaderEpochs
from tiered.local.recovery.recovery import LOST_POINT, UNKNOWN_POINT, Recovery
from tiered.local.segment.indexes import rebuild_indexes
from tiered.local.segment.scan import LogFile
from tiered.model import NewRecord, TopicPartition

FILES = PosixFiles()
TP = TopicPartition("t", 0)
ROUNDS = 300
SEED = os.environ.get("TIERED_MUTATIONS_SEED", "12")
Survey = Callable[..., pure_kernels.Survey | None]


def written(rng: random.Random, base: int) -> tuple[bytes, int]:
    """A segment, with its end offset: gaps, several epochs, producers, transactions, codecs, times that go back."""
    made, at, epoch = [], base, 0
    gaps = rng.random() < 0.4
    for _ in range(rng.randrange(1, 9)):
        records = [
            NewRecord(bytes(rng.choice((9, 90, 9_000))), b"k", rng.choice((-1, 5, 1_000 + rng.randrange(900))), None)
            for _ in range(rng.randrange(1, 4))
        ]
        epoch += rng.random() < 0.1
        producer = rng.random() < 0.1
        made.append(
            encode_batch(
                records,
                base_offset=at,
                leader_epoch=epoch,
                codec=rng.choice((Codec.NONE, Codec.LZ4)),
                producer=BatchProducer(
                    7 if producer else -1,
                    0 if producer else -1,
                    0 if producer else -1,
                    transactional=producer and rng.random() < 0.5,
                ),
            )
        )
        at += len(records) + (3 if gaps and rng.random() < 0.3 else 0)
    return b"".join(made), at


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Flipped bits (those of headers more often), a torn tail, zeros, other bytes, an offset, or nothing at all."""
    made = bytearray(data)
    kind = rng.randrange(7)
    if kind in (1, 2):
        for _ in range(rng.randrange(1, 3)):
            made[rng.randrange(min(len(made), 70) if kind == 1 else len(made))] ^= 1 << rng.randrange(8)
    elif kind == 3:
        del made[rng.randrange(len(made)) :]
    elif kind == 4:
        made += bytes(rng.randrange(1, 99))
    elif kind == 5:
        made += rng.randbytes(rng.randrange(1, 99))
    elif kind == 6:  # offsets are outside the CRC
        position = rng.choice([position for position, _ in walk_headers(data)])
        made[position + 7] = (made[position + 7] + rng.choice((-2, -1, 1, 2, 9))) % 256
    return bytes(made)


def surveys(monkeypatch: pytest.MonkeyPatch, outcome: Callable[[], Any]) -> list[Any]:
    """The outcome batch by batch, then by runs with the pure twin, then with the compiled one if it was built."""
    twins: list[Survey] = [lambda *_: None, pure_kernels.survey]
    if compiled is not None:
        twins.append(compiled.survey)
    found = []
    for twin in twins:
        monkeypatch.setattr(kernels, "survey", twin)
        found.append(outcome())
    return found


def recovered(given: Path, scratch: Path, dense: bool, clean: bool, point: int) -> Any:
    """All that a recovery says, and all files that it leaves."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(given, scratch)
    epochs = LeaderEpochs(scratch, FILES)
    recovery = Recovery(FILES, scratch, TP, epochs=epochs, interval_bytes=200, now_ms=1, dense=dense)
    segments = recovery.load(clean=clean, recovery_point=point, start_offset=0)
    said = [
        (s.base_offset, s.end_offset, s.size_bytes, s.damaged, s.first_timestamp, s.aborted)
        + (() if s.indexes is None else (s.indexes.offset_bytes(), s.indexes.time_bytes(), s.indexes.damaged))
        for s in segments
    ]
    files = {path.name: path.read_bytes() for path in sorted(scratch.iterdir())}
    return said, files, recovery.met_producers, epochs.entries


def test_recovery_is_the_same_by_runs_and_batch_by_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED)
    print(f"TIERED_MUTATIONS_SEED={SEED}")
    given, kinds = tmp_path / "given", set()
    for _ in range(ROUNDS):
        shutil.rmtree(given, ignore_errors=True)
        given.mkdir()
        base = end = 0
        for _ in range(rng.randrange(1, 4)):
            base = end
            data, end = written(rng, base)
            (given / log_name(base)).write_bytes(damaged(rng, data))
        point = rng.choice((UNKNOWN_POINT, LOST_POINT, 0, rng.randrange(end + 1), base, end))
        arguments = given, tmp_path / "scratch", rng.random() < 0.5, rng.random() < 0.3, point
        slowly, *quickly = surveys(monkeypatch, lambda arguments=arguments: recovered(*arguments))
        for found in quickly:
            assert found == slowly, arguments
        kinds.add((any(segment[3] for segment in slowly[0]), any("torn" in name for name in slowly[1])))
    assert kinds >= {(False, False), (True, False), (False, True)}


def test_rebuilt_indexes_are_the_same_by_runs_and_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(SEED)
    print(f"TIERED_MUTATIONS_SEED={SEED}")
    path, spoiled = tmp_path / log_name(40), 0

    def rebuilt(next_offset: int) -> tuple[bytes, bytes, bool]:
        with LogFile(FILES, path) as log:
            found = rebuild_indexes(log, 40, log.size(), 200, next_offset=next_offset)
        return found.offset_bytes(), found.time_bytes(), found.damaged

    for _ in range(ROUNDS):
        data, end = written(rng, 40)
        path.write_bytes(damaged(rng, data))
        beyond = rng.choice((end, end, end - 1, 2**63 - 1))
        slowly, *quickly = surveys(monkeypatch, lambda beyond=beyond: rebuilt(beyond))
        assert all(found == slowly for found in quickly)
        spoiled += slowly[2]
    assert ROUNDS // 4 < spoiled < ROUNDS
