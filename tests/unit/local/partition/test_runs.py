"""Reading by runs of batches: the batches of the disk, over bytes that stay as they are while anybody has them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.given import append_given
from tests.unit.local.bench import batch
from tests.unit.local.partition.old_batches import message, wrapper
from tiered.errors import CorruptionError, OffsetOutOfRangeError
from tiered.format.batch import decode_records, encode_batch
from tiered.format.batch_scanner import BatchRun, Offsets, walk_headers
from tiered.format.codecs import Codec
from tiered.format.kernel_values import Block
from tiered.format.local_names import log_name
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.local.partition.write_log import WriteLog
from tiered.local.segment.reading import read_runs
from tiered.local.segment.scan import LogFile
from tiered.model import NewRecord, TopicPartition

SEED = 11
TP = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[WriteLog]:
    """Five segments with batches of every kind of size and codec, one of them larger than the buffers of the tests."""
    rng = random.Random(SEED)
    with LocalLog.open(tmp_path / "log") as opened:
        opened.create_topic("t", 1)
        partition = opened.partition(TP)
        for at in range(60):
            new = [NewRecord(rng.randbytes(rng.randrange(400)), b"k", 1_000 + at) for _ in range(rng.randrange(1, 8))]
            if at == 30:
                new.append(NewRecord(rng.randbytes(9_000)))
            partition.append_batches(encode_batch(new, codec=rng.choice((Codec.NONE, Codec.NONE, Codec.LZ4))))
            if at % 12 == 11:
                partition.roll()
        yield partition


def split(runs: list[BatchRun]) -> list[bytes]:
    """The batches of runs."""
    return [bytes(run.data[at : at + h.size_bytes]) for run in runs for at, h in walk_headers(run.data)]


@pytest.mark.parametrize("buffer_bytes", [64, 700, 4_096, 1 << 20])
def test_runs_are_the_batches_of_the_disk(log: WriteLog, buffer_bytes: int) -> None:
    view = log.view()
    data = b"".join(path.read_bytes() for path in sorted(log.directory.glob("*.log")))
    every = [(header, data[at : at + header.size_bytes]) for at, header in walk_headers(data)]
    assert split(list(log.read_runs(0))) == [bytes(batch) for batch in log.read_batches(0)] == [one for _, one in every]
    for start in range(0, view.end_offset + 1, 7):
        for end in (start, start + 1, start + 30, view.end_offset):
            runs = list(read_runs(log.files, view, start, end, buffer_bytes=buffer_bytes))
            assert split(runs) == [one for h, one in every if h.last_offset >= start and h.base_offset < end > start]
            for run in runs:
                headers = [header for _, header in walk_headers(run.data)]
                assert (run.base_offset, run.next_offset) == (headers[0].base_offset, headers[-1].next_offset)
                assert run.data.readonly
    with pytest.raises(OffsetOutOfRangeError):
        next(read_runs(log.files, view, view.end_offset + 1, view.end_offset + 2))


def test_a_run_that_is_kept_is_not_written_over(log: WriteLog) -> None:
    view = log.view()
    kept = list(read_runs(log.files, view, 0, view.end_offset, buffer_bytes=700))
    taken = [bytes(run.data) for run in read_runs(log.files, view, 0, view.end_offset, buffer_bytes=700)]
    assert [bytes(run.data) for run in kept] == taken
    assert len({id(run.data.obj) for run in kept if type(run.data.obj) is Block}) > 9


def test_a_piece_is_filled_again_when_nobody_has_it(tmp_path: Path) -> None:
    path = tmp_path / log_name(0)
    path.write_bytes(b"".join(batch(offset) for offset in range(200)))
    with LogFile(PosixFiles(), path) as file:
        for kept, most in ((True, 3), (False, 2)):  # beside them the first piece, which has bytes of its own
            walk = file.walk(0, Offsets(0, 200))
            pieces, kinds, first = 0, {}, None
            for piece in file.pieces(walk, path.stat().st_size, buffer_bytes=700, kept=kept):
                pieces += 1
                first = first or piece.obj  # kept: its number would be given to another object
                kinds[id(piece.obj)] = type(piece.obj)
                assert walk.verified(piece, 200) is not None
                del piece
            assert pieces > 15
            assert 2 <= len(kinds) <= most
            assert (set(kinds.values()) == {Block}) == kept


@pytest.mark.parametrize("at", [0, 13, 30, 59])
def test_what_is_before_a_damage_comes_before_its_error(log: WriteLog, at: int) -> None:
    batches = [bytes(batch) for batch in log.read_batches(0)]
    headers = [next(walk_headers(batch))[1] for batch in batches]
    for extent in log.view().extents:
        data = bytearray(extent.segment.path.read_bytes())
        place = data.find(batches[at])
        if place >= 0:
            data[place + headers[at].size_bytes - 1] ^= 1
            extent.segment.path.write_bytes(data)
    found: list[BatchRun] = []
    with pytest.raises(CorruptionError, match="CRC mismatch") as error:
        found.extend(log.read_runs(0))  # extend keeps what came before an error
    assert error.value.offset == headers[at].base_offset
    assert split(found) == batches[:at]


@pytest.mark.parametrize("dense", [False, True])
def test_an_old_compressed_message_is_read_from_the_first_offset_inside(tmp_path: Path, dense: bool) -> None:
    """Its header tells the last one: a read that ends in its midst left it out, a restored log was a log with a gap."""
    values = [b"%d" % offset for offset in range(12)]
    old = message(0, values[0]) + message(1, values[1], magic=0) + wrapper(6, *values[2:7]) + wrapper(11, *values[7:])
    with LocalLog.open(tmp_path / "log") as opened:
        opened.create_topic("t", 1)
        partition = opened.partition(TP)
        append_given(partition, old)
        view = partition.view()._replace(dense=dense)
        for start in range(12):
            for end in range(start + 1, 13):
                batches = split(list(read_runs(partition.files, view, start, end)))
                found = {r.offset: r.value for each in batches for r in decode_records(each) if start <= r.offset < end}
                assert found == dict(enumerate(values[start:end], start))
        runs = list(read_runs(partition.files, view, 0, 12))
        assert [(run.base_offset, run.next_offset) for run in runs] == [(0, 1), (1, 2), (2, 7), (7, 12)]
    with tiered.open_reader(log_dir=tmp_path / "log") as reader:
        topic = reader.topic("t")
        for start in range(12):
            for end in range(start + 1, 13):
                wanted = {"partition": 0, "start": start, "end": end}
                found = {each.offset: each.value for each in topic.read(**wanted)}
                assert found == dict(enumerate(values[start:end], start))
                assert sum(len(each) for each in topic.read_batches(**wanted)) == end - start
