"""Pages and roots that name them: round trips, what old readers see, hostile bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import zstandard

from tests.unit.format.catalog.building import KEY, TOPIC_ID, leaf_pages, make_rows, name, page_of, paged_root
from tiered.errors import ConfigError, CorruptionError
from tiered.format.kernels import crc32c
from tiered.format.keys import PageName, Role, page_key
from tiered.format.page import (
    MAX_PAGE_BYTES,
    MAX_PAGE_ROWS,
    POINTER_COLUMNS,
    Content,
    PageKind,
    Pointers,
    decode_page,
    verified_page,
)
from tiered.format.root import decode_root, encode_root
from tiered.format.rows import ROW_BYTES, SUM_MODULUS, Rows, Trash
from tiered.model import TRASH_ROWS, TrashEntry
from tiered.plan.invariants import check_root

CONTENTS: list[Content] = [
    make_rows(1),
    make_rows(1024),
    Pointers.from_pointers([page.pointer for page in leaf_pages(5)]),
    Trash.from_entries([TrashEntry(1, 2, 10, 3, 4, 1, TRASH_ROWS, 40)] * 3),
]


@pytest.mark.parametrize("content", CONTENTS, ids=["one row", "leaf", "inner", "trash"])
def test_round_trip(content: Content) -> None:
    page = page_of(content)
    assert page.key == page_key(TOPIC_ID, 3, name(7))
    back = decode_page(page.body, key=page.key, kind=page.kind)
    assert back == content
    assert page_of(back) == page
    assert (page.pointer.crc, page.pointer.page_len) == (crc32c(page.body), len(page.body))
    if not isinstance(content, Trash):
        assert verified_page(page.body, page.pointer, key=page.key, kind=page.kind) == content


def test_a_pointer_says_what_its_page_holds_and_an_inner_page_what_its_pages_hold() -> None:
    made = make_rows(20)
    columns = made.columns
    pages = leaf_pages(5)
    pointers = Pointers.from_pointers([page.pointer for page in pages])
    top = page_of(pointers, role=Role.MAINTAINER).pointer
    assert (top.base, top.next, top.rows) == (0, 2000, 20)
    assert (top.min_ts, top.max_ts) == (int(columns["min_ts"].min()), int(columns["max_ts"].max()))
    assert (top.size, top.records) == (made.size_bytes, made.records)
    assert ((top.sum_hi % 2**64) << 64 | top.sum_lo % 2**64) == made.sum == pointers.tally.sum
    assert top.name == PageName(Role.MAINTAINER, 1, f"{7:032x}")
    assert pages[0].pointer.name == name(100)
    assert pointers.tally == made.tally
    assert Pointers.from_pointers([]).tally.sum == 0
    flagged = Rows.from_rows([row._replace(flags=at % 5, leader_epoch=at) for at, row in enumerate(made)])
    assert (page_of(flagged).pointer.row_flags, page_of(flagged).pointer.leader_epoch) == (7, 19)


def test_sums_of_many_pointers_do_not_overflow() -> None:
    (page,) = leaf_pages(1)
    for halves in ((-1, -1), (2**63 - 1, -(2**63)), (-(2**63), 2**63 - 1)):
        one = page.pointer._replace(sum_hi=halves[0], sum_lo=halves[1])
        value = (halves[0] % 2**64) << 64 | halves[1] % 2**64
        assert Pointers.from_pointers([one] * 1000).tally.sum == 1000 * value % SUM_MODULUS


@pytest.mark.parametrize(
    "change",
    [
        *[{"base": 1}, {"next": 401}, {"min_ts": 0}, {"max_ts": 0}, {"size": 1}, {"records": 1}, {"rows": 5}],
        *[{"sum_hi": 0}, {"sum_lo": 0}, {"row_flags": 4}, {"leader_epoch": 9}, {"crc": 5}, {"page_len": 5}],
    ],
)
def test_a_page_that_is_not_what_its_pointer_says_is_refused(change: dict[str, int]) -> None:
    page = leaf_pages(1)[0]
    with pytest.raises(CorruptionError, match="pointer says") as error:
        verified_page(page.body, page.pointer._replace(**change), key=page.key, kind=PageKind.LEAF)
    assert error.value.path_or_key == page.key


def test_of_another_page_with_its_key_what_it_holds_tells_not_its_checksum() -> None:
    """The whole of each has the same checksum, since it ends in that of all before: rows that differ in one CRC."""
    first, *others = make_rows(4)
    mine, other = (page_of(Rows.from_rows([first._replace(crc=crc), *others])) for crc in (1, 2))
    assert mine.pointer.crc == other.pointer.crc == crc32c(leaf_pages(1)[0].body)
    with pytest.raises(CorruptionError, match=r"sum_(hi|lo) is"):
        verified_page(other.body, mine.pointer._replace(page_len=len(other.body)), key=other.key, kind=PageKind.LEAF)


def test_a_page_with_a_gap_is_refused() -> None:
    rows = make_rows(4)
    page = page_of(Rows.from_rows([rows.row(0), rows.row(2), rows.row(3)]))
    with pytest.raises(CorruptionError, match="gap"):
        verified_page(page.body, page.pointer, key=page.key, kind=PageKind.LEAF)


def test_a_page_in_place_of_another_is_refused() -> None:
    page = page_of(make_rows(3))
    for key in (
        page_key(TOPIC_ID, 3, name(8)),
        page_key(TOPIC_ID, 3, name(7, Role.MAINTAINER)),
        page_key(TOPIC_ID, 4, name(7)),
        page_key(UUID(int=5), 3, name(7)),
        "elsewhere",
    ):
        with pytest.raises(CorruptionError, match="copied over this one"):
            decode_page(page.body, key=key, kind=PageKind.LEAF)
    with pytest.raises(CorruptionError, match="not a table of this release"):
        decode_page(page.body, key=page.key, kind=PageKind.INNER)


# -- hostile bytes -----------------------------------------------------------------------------------------------------


def forged(change: Callable[[dict[str, Any]], None], body: bytes | None = None) -> bytes:
    data = page_of(make_rows(4)).body
    length = struct.unpack_from("<I", data, 8)[0]
    header = json.loads(data[12 : 12 + length])
    change(header)
    text = json.dumps(header).encode()
    made = data[:8] + struct.pack("<I", len(text)) + text + (data[12 + length : -4] if body is None else body)
    return made + struct.pack("<I", crc32c(made))


PAGE_KEY = page_key(TOPIC_ID, 3, name(7))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "inner"},
        {"kind": 5},
        {"role": "x"},
        {"epoch": -1},
        {"epoch": 2**31},
        {"uid": "7"},
        {"uid": "G" * 32},
        {"topic_id": "0" * 32},
        {"partition": 4},
        {"raw_len": 2**40},
        {"raw_len": MAX_PAGE_ROWS * ROW_BYTES + 1},
        {"tables": []},
        {"tables": [["rows", 0, [list(one) for one in POINTER_COLUMNS]]]},
    ],
)
def test_a_header_that_lies_is_refused(change: dict[str, Any]) -> None:
    decode_page(forged(lambda header: None), key=PAGE_KEY, kind=PageKind.LEAF)
    with pytest.raises(CorruptionError) as error:
        decode_page(forged(lambda header: header.update(change)), key=PAGE_KEY, kind=PageKind.LEAF)
    assert PAGE_KEY in str(error.value)


def test_bombs_and_giants_are_refused_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    size = (MAX_PAGE_ROWS + 1) * ROW_BYTES
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(size))
    used: list[int] = []
    real = zstandard.ZstdDecompressor

    def counted() -> Any:
        used.append(1)
        return real()

    monkeypatch.setattr("tiered.format.framed_object.zstandard.ZstdDecompressor", counted)
    for raw_len in (size, 4 * ROW_BYTES):
        data = forged(partial(dict.update, raw_len=raw_len), bomb)
        with pytest.raises(CorruptionError):
            decode_page(data, key=PAGE_KEY, kind=PageKind.LEAF)
    with pytest.raises(CorruptionError, match="more than a page can have"):
        decode_page(bytes(MAX_PAGE_BYTES + 1), key=PAGE_KEY, kind=PageKind.LEAF)
    assert used == []


def test_a_page_of_nothing_and_a_page_of_a_newer_release_are_refused() -> None:
    empty = page_of(Trash.from_entries([]))
    with pytest.raises(CorruptionError, match="hold nothing"):
        decode_page(empty.body, key=empty.key, kind=PageKind.TRASH)
    newer = bytearray(forged(lambda header: None)[:-4])
    struct.pack_into("<H", newer, 4, 2)
    with pytest.raises(ConfigError, match="written by a newer release: it has format 2, this one reads 1"):
        decode_page(bytes(newer) + struct.pack("<I", crc32c(bytes(newer))), key=PAGE_KEY, kind=PageKind.LEAF)


# -- roots that name pages ---------------------------------------------------------------------------------------------


def test_a_root_with_pages_round_trips_and_is_good() -> None:
    root = paged_root()
    data = encode_root(root)
    assert decode_root(data, key=KEY) == root
    assert encode_root(decode_root(data, key=KEY)) == data
    assert check_root(root) == []
    assert root.held.segments == 30
    header = json.loads(data[12 : 12 + struct.unpack_from("<I", data, 8)[0]])
    assert [table[:2] for table in header["tables"]] == [["tail", 6], ["leaf", 2], ["inner", 1], ["trash", 1]]


def forged_root(change: dict[str, Any]) -> bytes:
    data = encode_root(paged_root())
    length = struct.unpack_from("<I", data, 8)[0]
    text = json.dumps({**json.loads(data[12 : 12 + length]), **change}).encode()
    made = data[:8] + struct.pack("<I", len(text)) + text + data[12 + length : -4]
    return made + struct.pack("<I", crc32c(made))


@pytest.mark.parametrize(
    "change",
    [
        {"dead": None},
        {"dead": {"segments": -1}},
        {"cleaned": [[1]]},
        {"cleaned": [[-1, 0]]},
        {"cleaned": [[at, 0] for at in range(65)]},
        {"cleaned": 5},
    ],
)
def test_a_root_header_that_lies_about_pages_is_refused(change: dict[str, Any]) -> None:
    assert decode_root(forged_root({}), key=KEY) == paged_root()
    with pytest.raises(CorruptionError):
        decode_root(forged_root(change), key=KEY)


def test_lookups_in_a_table_of_pointers() -> None:
    pointers = paged_root().leaves
    assert [pointers.first_above(offset) for offset in (0, 1999, 2000, 2399, 2400)] == [0, 0, 1, 1, 2]
    assert [one.base for one in pointers] == [1600, 2000]
    assert pointers.slice(0, 1).appended(pointers.slice(1)) == pointers
    assert not np.shares_memory(pointers.columns["base"], pointers.appended(pointers).columns["base"])
