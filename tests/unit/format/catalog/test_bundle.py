"""The index bundle: round trips, section by section, and hostile bytes."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest

from tiered.errors import ConfigError, CorruptionError
from tiered.format.bundle import (
    HEAD_BYTES,
    SectionKind,
    decode_bundle,
    decode_bundle_head,
    decode_leader_epochs,
    encode_bundle,
    verify_section,
)
from tiered.format.kernels import crc32c
from tiered.model import EpochEntry, SealedIndexes, SegmentDescriptor

DESCRIPTOR = SegmentDescriptor(
    UUID(int=7), 3, 2**63 - 200, 2**63 - 100, -5, 1_700_000_000_000, 100, 4096, 2**32 - 1, 9, 1_700_000_000_001
)
INDEXES = SealedIndexes(b"o" * 80, b"t" * 120, b"x" * 34, b"p" * 56, (EpochEntry(1, 0), EpochEntry(9, 2**62)))
KEY = "some.idx"


def resealed(data: bytearray) -> bytes:
    struct.pack_into("<I", data, HEAD_BYTES - 4, crc32c(data[: HEAD_BYTES - 4]))
    return bytes(data)


def test_round_trip() -> None:
    data = encode_bundle(DESCRIPTOR, INDEXES, 5)
    bundle = decode_bundle(data, key=KEY)
    assert (bundle.descriptor, bundle.indexes, bundle.claim_epoch) == (DESCRIPTOR, INDEXES, 5)
    assert bundle.size_bytes == len(data) == HEAD_BYTES + 80 + 120 + 34 + 56 + 24


def test_a_prefix_gives_the_head_and_a_range_one_section() -> None:
    data = encode_bundle(DESCRIPTOR, INDEXES, 5)
    head = decode_bundle_head(data[:HEAD_BYTES], key=KEY)
    section = head.section(SectionKind.TXN_INDEX)
    assert section is not None
    fetched = data[section.position : section.position + section.length]
    assert verify_section(section, fetched, key=KEY) == INDEXES.txn_index
    for wrong in (fetched[:-1], fetched[:-1] + b"y", b""):
        with pytest.raises(CorruptionError) as error:
            verify_section(section, wrong, key=KEY)
        assert (error.value.path_or_key, error.value.position) == (KEY, section.position)


def test_empty_sections_are_left_out() -> None:
    bundle = decode_bundle(encode_bundle(DESCRIPTOR, SealedIndexes(b"", b""), 5))
    assert bundle.sections == ()
    assert bundle.indexes == SealedIndexes(b"", b"")
    assert bundle.section(SectionKind.OFFSET_INDEX) is None
    assert bundle.size_bytes == HEAD_BYTES


def test_every_truncation_and_every_flipped_bit_is_found() -> None:
    data = encode_bundle(DESCRIPTOR, INDEXES, 5)
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_bundle(data[:length], key=KEY)
    with pytest.raises(CorruptionError, match="describes"):
        decode_bundle(data + b"x", key=KEY)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptionError) as error:
            decode_bundle(bytes(flipped), key=KEY)
        assert error.value.path_or_key == KEY


@pytest.mark.parametrize(
    ("fmt", "at", "values"),
    [
        ("<H", 10, (17,)),  # more sections than the table holds
        ("<H", 10, (4,)),  # fewer than there are bytes
        ("<H", 8, (0,)),
        ("<q", 40, (-1,)),
        ("<q", 48, (0,)),
        ("<i", 32, (-1,)),
        ("<q", 72, (-1,)),
        ("<q", 80, (-1,)),
        ("<q", 56, (2**62,)),  # min above max
        ("<II", 100, (511, 80)),  # section inside the head
        ("<II", 100, (512, 2**32 - 1)),
        ("<II", 100, (600, 80)),  # a hole before it
        ("<I", 112, (1,)),  # the same kind twice
    ],
)
def test_a_head_that_lies_is_refused(fmt: str, at: int, values: tuple[int, ...]) -> None:
    data = bytearray(encode_bundle(DESCRIPTOR, INDEXES, 5))
    struct.pack_into(fmt, data, at, *values)
    with pytest.raises(CorruptionError):
        decode_bundle(resealed(data), key=KEY)


def test_unknown_kinds_are_kept_and_ignored_and_newer_formats_named() -> None:
    data = bytearray(encode_bundle(DESCRIPTOR, INDEXES, 5))
    struct.pack_into("<I", data, 96 + 2 * 16, 77)
    bundle = decode_bundle(resealed(data), key=KEY)
    assert bundle.sections[2].kind == 77
    assert bundle.indexes.txn_index == b""
    struct.pack_into("<H", data, 8, 2)
    with pytest.raises(ConfigError, match="upgrade"):
        decode_bundle(resealed(data), key=KEY)


@pytest.mark.parametrize("data", [b"x", struct.pack("<iqiq", 5, 0, 5, 1), struct.pack("<iqiq", 5, 9, 6, 1)])
def test_leader_epochs_must_ascend(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_leader_epochs(data, key=KEY)
