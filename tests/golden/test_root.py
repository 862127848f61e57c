"""A stored root: it opens, and is written again byte for byte."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from tiered.format.keys import root_key
from tiered.format.root import Root, decode_root, encode_root
from tiered.plan.invariants import check_root

FILE = Path(__file__).parent / "data/root-of-2500-rows.olc1"
KEY = root_key(UUID(hex="00112233445566778899aabbccddeeff"), 3)


def golden_root() -> Root:
    """As it is read today."""
    return decode_root(FILE.read_bytes(), key=KEY)


def test_it_opens() -> None:
    root = golden_root()
    assert check_root(root) == []
    assert (len(root.rows), root.start_offset, root.next_offset, root.version) == (2498, 25, 25_000, 5)
    assert (root.added.segments, root.removed.segments, len(root.trash)) == (2500, 2, 2)
    assert (root.unknown, root.dead.segments) == ({}, 0)
    assert root.trash.entry(1).end == 0


def test_the_bytes_are_those_that_were_stored() -> None:
    assert encode_root(golden_root()) == FILE.read_bytes()
