"""A source read as a file: the same bytes however it is asked, out of one buffer for who sends at once."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from tiered.errors import ClosedError, CorruptionError
from tiered.format.kernels import crc32c
from tiered.format.segment_builder import BatchesSource
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.sealed import FileSource
from tiered.model import ByteSource, BytesSource, FillingSource
from tiered.store.s3_requests import checksum_of
from tiered.store.sources import PIECE_BYTES, WHOLE_BYTES, SourceReader, pieces_of
from tiered.testing.store_contract import FilledSource

BODY = random.Random(7).randbytes(3 * PIECE_BYTES + 12_345)
START, END = 1_000, 3 * PIECE_BYTES + 5_000
CUTS = [0, WHOLE_BYTES, WHOLE_BYTES + 7, 300_000, 300_000 + WHOLE_BYTES - 1, 3 * PIECE_BYTES, len(BODY)]
SOURCES = [BytesSource(BODY), FilledSource(BODY), BatchesSource([BODY[a:b] for a, b in pairwise(CUTS)])]


def source_id(source: ByteSource) -> str:
    return type(source).__name__


@pytest.mark.parametrize("source", SOURCES, ids=source_id)
@pytest.mark.parametrize("at_once", [False, True])
def test_all_of_a_range_whatever_is_asked_for_and_wherever_it_is_set(source: ByteSource, at_once: bool) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    dice = random.Random(seed)
    reader = SourceReader(source, START, END, at_once=at_once)
    assert len(reader) == END - START
    for _ in range(20):
        at = reader.seek(dice.choice((0, dice.randrange(END - START), PIECE_BYTES - 1)))
        found = bytearray()
        for _ in range(dice.randrange(1, 60)):
            if dice.random() < 0.2:
                buffer = bytearray(dice.choice((1, 100, 70_000, 2 * PIECE_BYTES)))
                found += buffer[: reader.readinto(buffer)]
            else:
                found += reader.read(dice.choice((1, 16_384, 131_072, 2 * PIECE_BYTES, -1, None)))
            assert reader.tell() == at + len(found)
        assert bytes(found) == BODY[START + at : START + at + len(found)]
    reader.seek(0, os.SEEK_END)
    assert bytes(reader.read(10)) == b""


def test_who_sends_at_once_gets_whole_pieces_of_one_buffer() -> None:
    reader = SourceReader(FilledSource(BODY), 0, len(BODY), at_once=True)
    first = reader.read(16_384)
    assert isinstance(first, memoryview)
    assert (len(first), bytes(first[:100])) == (PIECE_BYTES, BODY[:100])
    second = reader.read(16_384)
    assert isinstance(second, memoryview)
    assert second.obj is first.obj
    assert bytes(first[:100]) == BODY[PIECE_BYTES : PIECE_BYTES + 100]


def test_lent_memory_is_sent_as_it_lies_and_what_is_small_in_one_piece() -> None:
    large, small, other = random.Random(8).randbytes(WHOLE_BYTES), b"a" * 9, b"b" * (WHOLE_BYTES - 10)
    source = BatchesSource([large, small, other, large])
    reader = SourceReader(source, 0, source.size, at_once=True)
    for pieces in ([*pieces_of(source, 0, source.size)], [reader.read(16_384), reader.read(16_384)]):
        first, second = pieces
        assert isinstance(first, memoryview)
        assert first.obj is large
        assert second == small + other + large
    sizes = [len(piece) for piece in pieces_of(BatchesSource([BODY]), 5, len(BODY))]
    assert sizes == [PIECE_BYTES] * 3 + [len(BODY) - 5 - 3 * PIECE_BYTES]


@pytest.mark.parametrize("source", SOURCES, ids=source_id)
def test_who_keeps_what_it_reads_gets_bytes_of_its_own(source: ByteSource) -> None:
    reader = SourceReader(source, 0, len(BODY))
    kept = [reader.read(16_384) for _ in range(200)]
    assert all(type(each) is bytes for each in kept)
    assert b"".join(kept) == BODY[: 200 * 16_384]


@pytest.mark.parametrize("source", SOURCES, ids=source_id)
def test_pieces_and_the_checksum_of_a_range(source: ByteSource) -> None:
    assert b"".join([bytes(piece) for piece in pieces_of(source, START, END)]) == BODY[START:END]
    assert checksum_of(source, START, END) == crc32c(BODY[START:END])
    assert [*pieces_of(source, 5, 5)] == []
    assert checksum_of(source, 5, 5) == 0


def test_a_file_that_has_become_shorter_is_an_error_and_gives_nothing_stale(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(BODY)
    source = FileSource(PosixFiles(), path, len(BODY), sync=False)
    assert isinstance(source, FillingSource)
    reader = SourceReader(source, 0, len(BODY), at_once=True)
    assert bytes(reader.read(1)) == BODY[:PIECE_BYTES]
    os.truncate(path, PIECE_BYTES + 10)
    for _ in range(2):
        with pytest.raises(CorruptionError, match="ends before byte"):
            reader.read(1)
    assert isinstance(reader.failure, CorruptionError)
    reader.seek(0)
    assert bytes(reader.read(1)) == BODY[:PIECE_BYTES]
    with pytest.raises(CorruptionError, match="ends before byte"):
        checksum_of(source, 0, len(BODY))
    source.close()
    with pytest.raises(ClosedError):
        source.fill_from(0, memoryview(bytearray(1)))
