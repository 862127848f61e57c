"""Guards that keep transactional data out of a partition that the transaction coordinator does not know to be in it.

Optional (Kafka's ``transaction.partition.verification.enable``). A caller takes a guard, asks the coordinator, and
presents the guard with the append: a marker in between has cleared it, so a late batch cannot open a transaction that
nobody would ever end.
"""

from __future__ import annotations

import itertools

NO_GUARD = 0
"""Never a valid guard: what a caller has that did not ask, or that need not ask."""


class _Entry:
    __slots__ = ("epoch", "guard", "lowest_sequence", "timestamp")

    def __init__(self, guard: int, sequence: int, epoch: int, timestamp: int) -> None:
        self.guard = guard
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.timestamp = timestamp


class Verification:
    """The guards that are out, by producer id."""

    __slots__ = ("_entries", "_numbers")

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._numbers = itertools.count(NO_GUARD + 1)

    def start(self, producer_id: int, sequence: int, epoch: int, now_ms: int) -> int:
        """The guard of this producer; the same one until it is cleared. Remembers the lowest sequence of its epoch."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = _Entry(next(self._numbers), sequence, epoch, now_ms)
        elif epoch > entry.epoch:
            entry.epoch, entry.lowest_sequence = epoch, sequence
        elif epoch == entry.epoch:
            entry.lowest_sequence = min(entry.lowest_sequence, sequence)
        return entry.guard

    def accepts(self, producer_id: int, guard: int) -> bool:
        entry = self._entries.get(producer_id)
        return entry is not None and guard == entry.guard

    def lowest_sequence(self, producer_id: int) -> int | None:
        """A first append with a higher sequence overtook another; None without a guard."""
        entry = self._entries.get(producer_id)
        return None if entry is None else entry.lowest_sequence

    def clear(self, producer_id: int) -> None:
        """The transaction began, or is over."""
        self._entries.pop(producer_id, None)

    def clear_all(self) -> None:
        self._entries.clear()

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Guards that nobody came back with."""
        self._entries = {p: e for p, e in self._entries.items() if now_ms - e.timestamp < expiration_ms}

    def __len__(self) -> int:
        return len(self._entries)
