"""Selection of the records that an erasure removes, and the rebuild of their batches. Pure.

A removed record leaves its offset unused: its batch keeps its range, its producer and its place in a transaction, and
may become empty. Control batches, such as markers of transactions, are never records of a key.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tiered.errors import ConfigError
from tiered.format.batch import BatchHeader, decode_records, rebuild_batch
from tiered.format.header import Buffer
from tiered.model import Row
from tiered.times import Time, parse_time

NO_TOPIC = UUID(int=0)
MAX_KEYS = 100_000
"""Limit of keys and key prefixes in one erasure: all are in memory, and their hashes in its receipt."""

HASH = "BLAKE2b-256, keyed with the 16 bytes of the topic id"


@dataclass(frozen=True, slots=True)
class Selection:
    """Rule that selects records to erase: by ``keys``, by ``prefixes`` of keys, by time, or by key and time.

    A record is selected if its key is in ``keys`` or begins with one of ``prefixes``; without both, whatever its key
    is. ``before_ms``: only records with an older timestamp; records without a timestamp stay. Raises ConfigError for a
    rule without key, prefix and time, for an empty prefix, and for too many keys.
    """

    keys: frozenset[bytes] = frozenset()
    prefixes: tuple[bytes, ...] = ()
    before_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.keys and not self.prefixes and self.before_ms is None:
            raise ConfigError(
                "the erasure selects nothing: no key, prefix or time is given",
                hint="name a key, a prefix of keys, or a time",
            )
        if len(self.keys) + len(self.prefixes) > MAX_KEYS:
            raise ConfigError(f"{len(self.keys)} keys exceed the limit of {MAX_KEYS}", hint="run several erasures")
        if b"" in self.prefixes:
            raise ConfigError(
                "an empty prefix selects every key", hint="name the first characters of the keys to erase"
            )

    @classmethod
    def asked(cls, keys: Iterable[bytes], prefixes: Iterable[bytes], before: Time | None, now_ms: int) -> Selection:
        """Return the selection for a user's keys, prefixes and time. Raises InvalidTimestampError for an invalid time.

        Raises ConfigError without key, prefix and time, for an empty prefix, and for too many keys.
        ``before``: select only records before this time. A duration such as "-30d" counts from ``now_ms``. None: no
        limit.
        """
        before_ms = None if before is None else parse_time(before, now_ms=now_ms)
        return cls(frozenset(keys), tuple(prefixes), before_ms)

    def may_be_in(self, row: Row) -> bool:
        """Return False if the row alone proves that its segment has no selected record, otherwise True."""
        return row.size > 0 and (self.before_ms is None or row.min_ts < self.before_ms)

    def takes(self, key: bytes | None, timestamp: int) -> bool:
        """Return True if a record with this key and timestamp (ms; below 0: none) is erased."""
        if self.before_ms is not None and not 0 <= timestamp < self.before_ms:
            return False  # a record without a timestamp stays
        if not self.keys and not self.prefixes:
            return True
        return key is not None and self.names(key)

    def names(self, key: bytes) -> bool:
        """Return True if ``key`` is one of ``keys``, or begins with one of ``prefixes``."""
        return key in self.keys or (bool(self.prefixes) and key.startswith(self.prefixes))

    def count(self, header: BatchHeader, batch: Buffer) -> int:
        """Return how many records of a batch are erased."""
        return (
            0
            if header.is_control
            else sum(1 for record in decode_records(batch) if self.takes(record.key, record.timestamp))
        )

    def rest(self, header: BatchHeader, batch: Buffer) -> tuple[Buffer, int]:
        """Return (batch without erased records, number of erased records). With number 0 the batch is unchanged."""
        if header.is_control:
            return batch, 0
        records = list(decode_records(batch))
        kept = [record for record in records if not self.takes(record.key, record.timestamp)]
        gone = len(records) - len(kept)
        return (rebuild_batch(header, kept) if gone else batch), gone

    def hashed(self, topic_id: UUID) -> dict[str, object]:
        """Return the selection as JSON values for the erasure's receipt, with hashes in place of keys.

        ``topic_id``: BLAKE2b key of the hashes.
        """
        return {
            "hash": HASH,
            "keys": sorted(_hash(topic_id, key) for key in self.keys),
            "key_prefixes": sorted(_hash(topic_id, prefix) for prefix in self.prefixes),
            "before_ms": self.before_ms,
        }

    def job_id(self, topic_id: UUID, partitions: Sequence[int]) -> str:
        """Return the id of the erasure of these partitions. Equal erasures have equal ids, so that a rerun resumes."""
        asked = json.dumps([self.hashed(topic_id), sorted(partitions)]).encode()
        return f"erase-{hashlib.blake2b(asked, key=topic_id.bytes, digest_size=16).hexdigest()}"


@dataclass(frozen=True, slots=True)
class BlindSelection(Selection):
    """Selection that contains hashes in place of keys, for storage in a bucket and for other machines.

    ``keys``: hashes of keys. ``prefixes``: for each prefix its length (4 bytes) and its hash.
    """

    topic_id: UUID = NO_TOPIC

    @classmethod
    def from_selection(cls, selection: Selection, topic_id: UUID) -> BlindSelection:
        """Return ``selection`` with hashes in place of keys. ``topic_id``: BLAKE2b key of the hashes."""
        prefixes = [len(each).to_bytes(4, "big") + _digest(topic_id, each) for each in selection.prefixes]
        keys = frozenset(_digest(topic_id, key) for key in selection.keys)
        return cls(keys, tuple(sorted(prefixes)), selection.before_ms, topic_id)

    def as_json(self) -> dict[str, Any]:
        """Return the selection as JSON values, for :meth:`from_json`. Equal selections give equal values."""
        keys, prefixes = sorted(key.hex() for key in self.keys), [prefix.hex() for prefix in self.prefixes]
        return {"topic_id": self.topic_id.hex, "keys": keys, "prefixes": prefixes, "before_ms": self.before_ms}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> BlindSelection:
        """Return the selection from the fields of :meth:`as_json`."""
        keys, prefixes = (tuple(bytes.fromhex(each) for each in fields[name]) for name in ("keys", "prefixes"))
        return cls(frozenset(keys), prefixes, fields["before_ms"], UUID(fields["topic_id"]))

    def names(self, key: bytes) -> bool:
        """Return True if ``keys`` has the hash of ``key``, or ``prefixes`` has the hash of a prefix of ``key``."""
        if self.keys and _digest(self.topic_id, key) in self.keys:
            return True
        return any(
            len(key) >= length and _digest(self.topic_id, key[:length]) in hashes
            for length, hashes in _by_length(self.prefixes)
        )

    def hashed(self, topic_id: UUID) -> dict[str, object]:
        """Return the selection as JSON values for the erasure's receipt. ``topic_id`` is not used."""
        return {
            "hash": HASH,
            "keys": sorted(key.hex() for key in self.keys),
            "key_prefixes": sorted(prefix[4:].hex() for prefix in self.prefixes),
            "before_ms": self.before_ms,
        }


@functools.lru_cache(maxsize=4)
def _by_length(prefixes: tuple[bytes, ...]) -> tuple[tuple[int, frozenset[bytes]], ...]:
    lengths = sorted({int.from_bytes(prefix[:4], "big") for prefix in prefixes})
    return tuple(
        (length, frozenset(prefix[4:] for prefix in prefixes if prefix[:4] == length.to_bytes(4, "big")))
        for length in lengths
    )


def _digest(topic_id: UUID, key: bytes) -> bytes:
    return hashlib.blake2b(key, key=topic_id.bytes, digest_size=32).digest()


def _hash(topic_id: UUID, key: bytes) -> str:
    return _digest(topic_id, key).hex()
