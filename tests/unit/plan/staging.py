"""Rows as a sink's tasks stage them."""

from __future__ import annotations

from tiered.format.keys import FLAG_STAGED, split_uid, staged_uid
from tiered.model import Row


def staged(offsets: int, number: int, txn: str = "q", batch: int = 0, **changes: int) -> Row:
    high, low = split_uid(staged_uid(txn, batch, number))
    row = Row(0, offsets, 5, 6, offsets * 10, 7, high, low, 600, 0, offsets, FLAG_STAGED, -1)
    return row._replace(**changes)
