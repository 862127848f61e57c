"""The decision of a pull: what stays, is fetched, is replaced and is dropped."""

from __future__ import annotations

import pytest

from tiered.format.keys import FLAG_HOLE, FLAG_STAGED
from tiered.format.segment_builder import SegmentStats
from tiered.model import Row
from tiered.plan.pull import Exchange, Held, Pull, decide_pull

END = 80


def row(base: int, end: int, crc: int = 7, flags: int = 0) -> Row:
    return Row(base, end, 1, 2, 0 if flags & FLAG_HOLE else 100, crc, 0, 0, 10, 1, end - base, flags, 0, appended_ms=5)


def held(base: int, crc: int = 7, records: int = 20) -> Held:
    return Held(base, SegmentStats(100, crc, records, 1, 2, appended_ms=5))


A, B, C = row(20, 40), row(40, 60), row(60, 80)
EMPTY = Held(80, None)


@pytest.mark.parametrize(
    ("local", "rows", "exchanges", "dropped"),
    [
        ([], [A, B], [((A,), ()), ((B,), ())], ()),
        ([held(20), held(40), held(60), EMPTY], [A, B, C], [], ()),
        ([held(20), held(40), Held(60, None)], [A, B, C], [((C,), (60,))], ()),
        ([held(20), Held(40, None), held(60), EMPTY], [A, B, C], [((B,), (40,))], ()),
        ([held(20), held(40, crc=8), held(60), EMPTY], [A, B, C], [((B,), (40,))], ()),
        ([held(20), held(40), held(60), EMPTY], [row(20, 60), C], [((row(20, 60),), (20, 40))], ()),
        ([held(20, records=40), held(60), EMPTY], [A, B, C], [((A, B), (20,))], ()),
        ([held(20), held(40), held(60), EMPTY], [B, C], [], (20,)),
        ([held(20), held(40), held(60), EMPTY], [A, row(40, 60, flags=FLAG_HOLE), C], [], (40,)),
        ([held(20), held(40), held(60), EMPTY], [], [], (20, 40, 60)),
        ([held(20, crc=9), EMPTY], [row(20, 40, flags=FLAG_STAGED)], [], ()),
    ],
    ids=(
        "new",
        "same",
        "more",
        "no note",
        "other bytes",
        "merged",
        "split",
        "trimmed",
        "hole",
        "all trimmed",
        "staged",
    ),
)
def test_table(local: list[Held], rows: list[Row], exchanges: list[tuple], dropped: tuple[int, ...]) -> None:
    decided = decide_pull(local, rows, END)
    assert decided == Pull(tuple(Exchange(*each) for each in exchanges), dropped)
    assert decided.size_bytes == sum(each.size for exchange in decided.exchanges for each in exchange.new)
