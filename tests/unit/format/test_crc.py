"""CRC-32C: both twins beside the polynomial and the wheel, by every way to sum that this processor has."""

from __future__ import annotations

import random
from collections.abc import Callable

import crc32c as wheel
import pytest

from tests.unit.format.twins import compiled, needs_both, outcome
from tiered.format import kernels, pure_kernels
from tiered.format.kernels import crc32c

REVERSED_POLYNOMIAL = 0x82F63B78
SEED = random.SystemRandom().randrange(2**32)
WAYS = compiled.CRC_WAYS if compiled else ()


def by_the_polynomial(data: bytes, value: int = 0) -> int:
    rest = value ^ 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ REVERSED_POLYNOMIAL * (rest & 1)
    return rest ^ 0xFFFFFFFF


def test_the_golden_sum_and_that_it_continues() -> None:
    assert crc32c is kernels.crc32c
    assert crc32c(b"123456789") == by_the_polynomial(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
    assert crc32c(memoryview(b"123456789")) == crc32c(bytearray(b"123456789")) == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(b"", 7) == 7


@needs_both
@pytest.mark.parametrize("way", WAYS)
def test_every_size_at_every_place_and_behind_every_sum(way: int) -> None:
    """Each length up to four of the widest strides, so every end of every loop; and lengths beyond a thread's share."""
    print(f"SEED={SEED}")
    rng = random.Random(SEED)
    data = rng.randbytes(300_000)
    for size in (*range(1100), *(rng.randrange(1100, 290_000) for _ in range(50)), 65_535, 65_536, 262_144):
        for start in (0, rng.randrange(1, 64)):
            piece, before = memoryview(data)[start : start + size], rng.choice((0, 2**32 - 1, rng.getrandbits(32)))
            assert compiled.crc32c(piece, before, way=way) == wheel.crc32c(piece, before), (start, size, before)
            assert compiled.crc32c(piece, before) == wheel.crc32c(piece, before), (start, size, before)
    for size in (0, 1, 7, 8, 127, 128, 511, 512, 1023):
        assert compiled.crc32c(data[:size], way=way) == by_the_polynomial(data[:size])
    for size in (128, 512, 700, 100_000):  # one bit of each place that a lane starts at, alone
        for at in (0, 15, 16, 63, 64, size - 1):
            lone = bytes(at) + b"\x01" + bytes(size - at - 1)
            assert compiled.crc32c(lone, way=way) == wheel.crc32c(lone)


@needs_both
@pytest.mark.parametrize(
    "call",
    [
        lambda crc: crc("text"),
        lambda crc: crc(None),
        lambda crc: crc(memoryview(b"12345678")[::2]),
        lambda crc: crc(b"1", "2"),
        lambda crc: crc(b"1", None),
        lambda crc: crc(b"1", -1),
        lambda crc: crc(b"1", 2**32),
        lambda crc: crc(b"1", 2**64),
        lambda crc: crc(b"1", True),
        lambda crc: crc(),
    ],
)
def test_what_is_no_buffer_or_no_sum_is_met_as_by_the_wheel(call: Callable[[Callable[..., int]], object]) -> None:
    ours, theirs = outcome(lambda: call(compiled.crc32c)), outcome(lambda: call(pure_kernels.crc32c))
    assert ours == theirs or [type(each) for each in (ours, theirs)] == [tuple, tuple]
    assert isinstance(ours, tuple) == isinstance(theirs, tuple)
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        assert ours[0] is theirs[0]


@needs_both
def test_a_way_that_this_processor_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="this processor cannot sum by way 9"):
        compiled.crc32c(b"1", way=9)
