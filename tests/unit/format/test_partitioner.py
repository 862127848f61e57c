"""Kafka's default partitioner: the hash values are those of Kafka's own ``UtilsTest``."""

from __future__ import annotations

from collections import Counter

import pytest

from tiered.format.partitioner import Partitioner, murmur2

KAFKA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "expected"), KAFKA_HASHES.items())
def test_murmur2_is_kafkas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFFFFFF


def test_same_key_same_partition_and_keys_spread() -> None:
    partitioner = Partitioner(8)
    keys = [b"key-%d" % i for i in range(4000)]
    first = [partitioner.partition_for(k) for k in keys]
    assert first == [partitioner.partition_for(k) for k in keys]
    assert set(first) == set(range(8))
    assert max(Counter(first).values()) < 2 * min(Counter(first).values())


def test_records_without_key_take_turns() -> None:
    partitioner = Partitioner(3)
    assert [partitioner.partition_for(None) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_one_partition_needs_no_hash() -> None:
    assert {Partitioner(1).partition_for(k) for k in (None, b"", b"x")} == {0}
