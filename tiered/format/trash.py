"""One entry of a catalog's trash, and its kinds; ``format.rows`` has the table of them, with numpy."""

from __future__ import annotations

from typing import NamedTuple

TRASH_OBJECT = 0
"""Trash kind: the ``.log`` and ``.idx`` of one segment."""
TRASH_TREE = 1
"""Trash kind: a page and everything it names. The page goes last, so that a crash never loses the list."""
TRASH_ROWS = 2
"""Trash kind: of a leaf, named by its page id, the rows with ``base < next <= end``. The page itself stays."""
TRASH_PAGE = 3
"""Trash kind: a page alone: a newer page names what it named."""
TRASH_LIST = 4
"""Trash kind: a page of trash entries, and what each of them names."""
TRASH_KINDS = range(5)
TRASH_MAINTAINER = 0x100
"""Bit in a trash kind: the key's role letter is ``m``."""
TRASH_STAGED = 0x200
"""Bit in a trash kind: the key is that of what a sink staged, ``s/t/{uid}``."""
KEY_BITS = TRASH_MAINTAINER | TRASH_STAGED
"""Bits of a trash kind that tell the key, not what is to go."""


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
        """The kind without the bits that tell the key."""
        return self.kind & ~KEY_BITS
