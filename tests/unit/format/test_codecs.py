"""Codecs: the framings Kafka writes, both framings of snappy, limits, and damaged input."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import threading
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.foreign import xxh32
from tests.unit.format.strategies import codecs
from tiered.errors import CodecUnavailableError, ConfigError, CorruptionError
from tiered.format.codecs import Codec, codec_of, compress, decompress

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"the quick brown fox jumps over the lazy dog. " * 3_000  # 135 KB: several blocks of every codec
BIG = 2**62


@given(data=st.binary(max_size=2_000) | st.integers(0, 300_000).map(bytes), codec=codecs)
def test_round_trip(data: bytes, codec: Codec) -> None:
    assert decompress(codec, compress(codec, data), max_bytes=len(data)) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_any_buffer_goes_in_and_bytes_come_out(codec: Codec) -> None:
    for buffer in (TEXT, bytearray(TEXT), memoryview(TEXT)):
        packed = compress(codec, buffer)
        assert type(packed) is bytes
        out = decompress(codec, memoryview(packed))
        assert type(out) is bytes
        assert out == TEXT


# --- framings -------------------------------------------------------------------------------------------------


def test_gzip_is_one_member_without_name_and_time_and_reads_several() -> None:
    assert compress(Codec.GZIP, TEXT)[:8] == bytes.fromhex("1f8b080000000000")
    assert gzip.decompress(compress(Codec.GZIP, TEXT)) == TEXT
    two = gzip.compress(b"one ") + gzip.compress(b"two", mtime=1)
    assert decompress(Codec.GZIP, two) == b"one two"


def test_snappy_is_written_with_xerial_framing_and_read_with_and_without() -> None:
    packed = compress(Codec.SNAPPY, TEXT)
    assert packed[:16].hex() == "82534e41505059000000000100000001"
    first = struct.unpack_from(">i", packed, 16)[0]
    assert cramjam.snappy.decompress_raw_len(packed[20 : 20 + first]) == 32 * 1024
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert decompress(Codec.SNAPPY, raw) == TEXT
    assert decompress(Codec.SNAPPY, packed[:16]) == b""


def test_lz4_frames_have_kafkas_header_and_independent_blocks() -> None:
    packed = compress(Codec.LZ4, TEXT)
    assert packed[:7].hex() == "04224d18604082"
    assert packed[-4:] == bytes(4)
    size = struct.unpack_from("<I", packed, 7)[0] & 0x7FFF_FFFF
    # A frame of the first block alone decodes: it does not look back.
    assert len(lz4.frame.decompress(packed[: 11 + size] + bytes(4))) == 64 * 1024


def test_zstd_frames_state_no_content_size_and_several_are_read() -> None:
    packed = compress(Codec.ZSTD, TEXT)
    assert zstandard.frame_content_size(packed) == -1
    assert decompress(Codec.ZSTD, packed + compress(Codec.ZSTD, b"more")) == TEXT + b"more"
    stated = zstandard.ZstdCompressor(write_checksum=True, write_content_size=True).compress(TEXT)
    assert decompress(Codec.ZSTD, stated) == TEXT
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"xyz"
    assert decompress(Codec.ZSTD, skippable + packed) == TEXT


def test_levels_change_the_size_and_are_checked() -> None:
    for codec, low, high in ((Codec.GZIP, 1, 9), (Codec.LZ4, 0, 12), (Codec.ZSTD, -5, 19)):
        small, large = compress(codec, TEXT, high), compress(codec, TEXT, low)
        assert len(small) < len(large)
        assert decompress(codec, small) == decompress(codec, large) == TEXT
        with pytest.raises(ConfigError, match=f"{codec.label} has no level 99"):
            compress(codec, TEXT, 99)


def test_contexts_are_per_thread() -> None:
    results: list[bytes] = []

    def work() -> None:
        results.extend(decompress(Codec.ZSTD, compress(Codec.ZSTD, TEXT)) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [TEXT] * 80


# --- names and numbers ----------------------------------------------------------------------------------------


def test_names_and_numbers_are_kafkas() -> None:
    assert [c.label for c in Codec] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [codec_of(0x78 | i) for i in range(5)] == list(Codec)
    for number in (5, 6, 7):
        with pytest.raises(CodecUnavailableError, match=f"codec {number}"):
            codec_of(number)


# --- limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_the_limit_is_exact(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, max_bytes=len(TEXT)) == TEXT
    for limit in (len(TEXT) - 1, 70_000, 1, 0):
        with pytest.raises(CorruptionError, match=f"larger than {limit} bytes"):
            decompress(codec, packed, max_bytes=limit)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bombs_are_refused(codec: Codec) -> None:
    bomb = compress(codec, bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match="larger than 1000000 bytes"):
            decompress(codec, bomb, max_bytes=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_bombs_in_many_members_are_refused() -> None:
    with pytest.raises(CorruptionError, match="larger than 1000000 bytes"):
        decompress(Codec.GZIP, gzip.compress(bytes(900_000)) * 2, max_bytes=1_000_000)
    with pytest.raises(CorruptionError, match="larger than 1000000 bytes"):
        decompress(Codec.ZSTD, compress(Codec.ZSTD, bytes(900_000)) * 2, max_bytes=1_000_000)


def test_a_claimed_size_is_not_believed() -> None:
    claim = b"\xff\xff\xff\xff\x0f"  # raw snappy: 4 GiB follow
    with pytest.raises(CorruptionError, match="9 bytes cannot hold the claimed 4294967295"):
        decompress(Codec.SNAPPY, claim + b"abcd", max_bytes=BIG)
    with pytest.raises(CorruptionError, match="no length at the start of a block"):
        decompress(Codec.SNAPPY, b"\xff" * 9)
    window = struct.pack("<IBB", 0xFD2FB528, 0, 0xA8) + b"\x01\0\0"  # a window of 2 GiB
    with pytest.raises(CorruptionError, match=r"zstd data is damaged: .*too much memory"):
        decompress(Codec.ZSTD, window)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_small_batch_allocates_little_whatever_the_limit(codec: Codec) -> None:
    packed = compress(codec, b"small" * 100)
    decompress(codec, packed)
    tracemalloc.start()
    try:
        decompress(codec, packed, max_bytes=2**40)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_a_hostile_content_size_allocates_nothing() -> None:
    sized = bytearray(lz4.frame.compress(b"small", block_linked=False, store_size=True))
    sized[6:14] = struct.pack("<Q", 2**60)
    sized[14] = xxh32(bytes(sized[4:14])) >> 8 & 0xFF
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match="lz4 data is damaged"):
            decompress(Codec.LZ4, sized)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


# --- damage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", COMPRESSING)
def test_every_truncation_is_noticed(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    for cut in [*range(1, 40), len(packed) // 2, len(packed) - 1, len(packed)]:
        if codec is Codec.SNAPPY and len(packed) - cut in (0, 16):
            continue
        with pytest.raises(CorruptionError, match=codec.label) as caught:
            decompress(codec, packed[: len(packed) - cut])
        assert caught.value.position >= 0


@pytest.mark.parametrize("codec", COMPRESSING)
def test_every_flipped_byte_gives_bytes_or_corruption(codec: Codec) -> None:
    source = TEXT[:300] + zlib.compress(TEXT)[:200]
    packed = bytearray(compress(codec, source))
    for i in range(len(packed)):
        for mask in (0x01, 0x80, 0xFF):
            packed[i] ^= mask
            with contextlib.suppress(CorruptionError):
                assert len(decompress(codec, packed, max_bytes=100_000)) <= 100_000
            packed[i] ^= mask


@given(data=st.binary(max_size=200), codec=st.sampled_from(COMPRESSING), prefixed=st.booleans())
def test_garbage_gives_bytes_or_corruption(data: bytes, codec: Codec, prefixed: bool) -> None:
    heads = {Codec.GZIP: 10, Codec.SNAPPY: 16, Codec.LZ4: 7, Codec.ZSTD: 6}
    if prefixed:
        data = compress(codec, TEXT)[: heads[codec]] + data
    with contextlib.suppress(CorruptionError):
        assert len(decompress(codec, data, max_bytes=100_000)) <= 100_000


# --- more than one step: bytes behind the data, as Java's decoders leave them alone, are in tests/golden ---------


def test_gzip_of_more_than_one_step_has_every_byte() -> None:
    data = random.Random(5).randbytes(300_000) + bytes(3_000_000) + TEXT
    packed = gzip.compress(data)
    assert len(packed) > 300_000
    assert decompress(Codec.GZIP, packed + packed + b"junk") == data + data
    with pytest.raises(CorruptionError, match="gzip data is damaged: it ends early"):
        decompress(Codec.GZIP, packed[:-9])


def test_a_gzip_bomb_holds_no_more_than_its_limit() -> None:
    bomb = gzip.compress(bytes(60_000_000)) + random.Random(7).randbytes(80_000)
    assert len(bomb) > 64 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match="larger than 10000000 bytes"):
            decompress(Codec.GZIP, bomb, max_bytes=10_000_000)
        assert tracemalloc.get_traced_memory()[1] < 14_000_000
    finally:
        tracemalloc.stop()
