"""The table: what may happen to the bytes of a ``.log``, and to the files beside it."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import NamedTuple

from tests.damage.scene import Place
from tiered.format.header import HEADER_BYTES

Spoil = Callable[[bytearray, list[Place], int, random.Random], None]
"""Changes the bytes of a ``.log`` at the batch with this number."""


def _put(layout: str, at: int, new: Callable[[int], int]) -> Spoil:
    def spoil(data: bytearray, places: list[Place], number: int, _: random.Random) -> None:
        position = places[number].position + at
        (old,) = struct.unpack_from(layout, data, position)
        struct.pack_into(layout, data, position, new(old))

    return spoil


def _flip(first: int, last: int) -> Spoil:
    """One bit in the bytes ``first`` to ``last`` (inclusive) of the batch."""

    def spoil(data: bytearray, places: list[Place], number: int, seeded: random.Random) -> None:
        place = places[number]
        at = seeded.randint(first, last if last >= 0 else place.header.size_bytes + last)
        data[place.position + at] ^= 1 << seeded.randrange(8)

    return spoil


def _join(data: bytearray, places: list[Place], number: int, _: random.Random) -> None:
    """The length reaches over the next batch."""
    at = places[number].position
    following = places[number + 1].header.size_bytes if number + 1 < len(places) else 8
    struct.pack_into(">i", data, at + 8, places[number].header.batch_length + following)


def _cut(extra: int) -> Spoil:
    def spoil(data: bytearray, places: list[Place], number: int, _: random.Random) -> None:
        del data[places[number].position + extra :]

    return spoil


def _zero(length: int | None) -> Spoil:
    """From the start of the batch on; None: to the end of the file, 0: the whole batch."""

    def spoil(data: bytearray, places: list[Place], number: int, _: random.Random) -> None:
        place = places[number]
        size = len(data) - place.position if length is None else length or place.header.size_bytes
        data[place.position : place.position + size] = bytes(size)

    return spoil


def _append(make: Callable[[bytearray, list[Place], random.Random], bytes]) -> Spoil:
    def spoil(data: bytearray, places: list[Place], _: int, seeded: random.Random) -> None:
        data += make(data, places, seeded)

    return spoil


def _twice(data: bytearray, places: list[Place], number: int, _: random.Random) -> None:
    """The batch stands there twice."""
    place = places[number]
    end = place.position + place.header.size_bytes
    data[end:end] = data[place.position : end]


class Damage(NamedTuple):
    """``anywhere``: at the first, a middle and the last batch; else the place does not matter."""

    spoil: Spoil
    anywhere: bool = True
    epoch_only: bool = False


LOG_DAMAGES: dict[str, Damage] = {
    "base offset, beyond all": Damage(_put(">q", 0, lambda old: old + 5000)),
    "base offset, top bit": Damage(_put(">q", 0, lambda old: old | 1 << 62)),
    "base offset, negative": Damage(_put(">q", 0, lambda _: -1)),
    "base offset, zero": Damage(_put(">q", 0, lambda old: 0 if old else 1 << 40)),
    "length, 4 MiB more": Damage(_put(">i", 8, lambda old: old ^ 1 << 22)),
    "length, more": Damage(_put(">i", 8, lambda old: old + 7)),
    "length, less": Damage(_put(">i", 8, lambda old: old - 7)),
    "length, zero": Damage(_put(">i", 8, lambda _: 0)),
    "length, negative": Damage(_put(">i", 8, lambda old: -old)),
    "length, over the next": Damage(_join),
    "leader epoch": Damage(_put(">i", 12, lambda old: old ^ 1 << 4), epoch_only=True),
    "magic 0": Damage(_put(">b", 16, lambda _: 0)),
    "magic 1": Damage(_put(">b", 16, lambda _: 1)),
    "magic 3": Damage(_put(">b", 16, lambda _: 3)),
    "magic 66": Damage(_put(">b", 16, lambda old: old ^ 64)),
    "crc": Damage(_flip(17, 20)),
    "attributes": Damage(_flip(21, 22)),
    "last offset delta": Damage(_flip(23, 26)),
    "timestamps": Damage(_flip(27, 42)),
    "producer": Damage(_flip(43, 56)),
    "count": Damage(_flip(57, 60)),
    "body": Damage(_flip(HEADER_BYTES, -1)),
    "cut at a border": Damage(_cut(0)),
    "cut in a header": Damage(_cut(20)),
    "cut in a body": Damage(_cut(HEADER_BYTES + 5)),
    "batch of zeros": Damage(_zero(0)),
    "header of zeros": Damage(_zero(HEADER_BYTES)),
    "zeros to the end": Damage(_zero(None)),
    "twice": Damage(_twice),
    "noise behind": Damage(_append(lambda _d, _p, seeded: seeded.randbytes(200)), anywhere=False),
    "a few bytes behind": Damage(_append(lambda _d, _p, seeded: seeded.randbytes(9)), anywhere=False),
    "zeros behind": Damage(_append(lambda _d, _p, _s: bytes(300)), anywhere=False),
    "the first batch behind": Damage(
        _append(lambda data, places, _: bytes(data[: places[0].header.size_bytes])), anywhere=False
    ),
}
