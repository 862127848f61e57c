"""One entry of a catalog's trash, and its kinds; ``format.rows`` has their table, with numpy."""

from __future__ import annotations

from typing import NamedTuple

TRASH_OBJECT = 0
"""Trash kind: the ``.log`` and ``.idx`` of one segment."""
TRASH_TREE = 1
"""Trash kind: a page and everything it names. The page is deleted last, so that a crash never loses the list."""
TRASH_ROWS = 2
"""Trash kind: the rows of a leaf with ``base < next <= end``. The entry has the leaf's id; the page itself stays."""
TRASH_PAGE = 3
"""Trash kind: a page alone; a newer page names its entries."""
TRASH_LIST = 4
"""Trash kind: a page of trash entries, and the objects that each of them names."""
TRASH_KINDS = range(5)
TRASH_MAINTAINER = 0x100
"""Bit in a trash kind: the key's role letter is ``m``."""
TRASH_STAGED = 0x200
"""Bit in a trash kind: the key is that of a staged object, ``s/t/{uid}``."""
KEY_BITS = TRASH_MAINTAINER | TRASH_STAGED
"""Bits of a trash kind that select the form of the key."""


class TrashEntry(NamedTuple):
    """An object that a committed root no longer names. ``removed_ms`` is the root's monotone ``ts_ms``."""

    id_hi: int
    id_lo: int
    base: int
    removed_version: int
    removed_ms: int
    epoch: int
    kind: int = TRASH_OBJECT
    end: int = 0

    @property
    def what(self) -> int:
        """Kind without the bits that select the form of the key."""
        return self.kind & ~KEY_BITS
