"""Which records an erasure takes, and what is left of a batch. Pure.

A record that goes leaves its offset behind: its batch keeps its range, its producer and its place in a transaction, and
is emptied where nothing else was in it. What says who wrote, and markers of transactions, are never records of a key.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tiered.errors import ConfigError
from tiered.format.batch import BatchHeader, decode_records, rebuild_batch
from tiered.format.header import Buffer
from tiered.model import Row

NO_TOPIC = UUID(int=0)
MAX_KEYS = 100_000
"""Keys and beginnings of keys of one erasure: all are held in memory, and stand in its receipt as hashes."""

HASH = "BLAKE2b-256, keyed with the 16 bytes of the topic id"


@dataclass(frozen=True, slots=True)
class Selection:
    """Records of one of ``keys``, or of a key that begins with one of ``prefixes``; any key where neither is given.

    ``before_ms``: of these only what has an older timestamp; what has none stays.
    """

    keys: frozenset[bytes] = frozenset()
    prefixes: tuple[bytes, ...] = ()
    before_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.keys and not self.prefixes and self.before_ms is None:
            raise ConfigError("nothing says what is to be erased", hint="name a key, the beginning of keys, or a time")
        if len(self.keys) + len(self.prefixes) > MAX_KEYS:
            raise ConfigError(f"{len(self.keys)} keys are more than the {MAX_KEYS} of one erasure", hint="take several")
        if b"" in self.prefixes:
            raise ConfigError("every key begins with nothing", hint="name the beginning of the keys that are meant")

    def may_be_in(self, row: Row) -> bool:
        """False if nothing in a segment can be meant, by what its row tells."""
        return row.size > 0 and (self.before_ms is None or row.min_ts < self.before_ms)

    def takes(self, key: bytes | None, timestamp: int) -> bool:
        """Whether a record goes. ``timestamp`` in ms, below 0 where it has none."""
        if self.before_ms is not None and not 0 <= timestamp < self.before_ms:
            return False  # also where no time is known
        if not self.keys and not self.prefixes:
            return True
        return key is not None and self.names(key)

    def names(self, key: bytes) -> bool:
        """Whether it is one of the keys, or begins as one."""
        return key in self.keys or (bool(self.prefixes) and key.startswith(self.prefixes))

    def count(self, header: BatchHeader, batch: Buffer) -> int:
        """Records of a batch that go."""
        return (
            0
            if header.is_control
            else sum(1 for record in decode_records(batch) if self.takes(record.key, record.timestamp))
        )

    def rest(self, header: BatchHeader, batch: Buffer) -> tuple[Buffer, int]:
        """What is left of a batch, byte for byte the same if nothing goes, and how many records went."""
        if header.is_control:
            return batch, 0
        records = list(decode_records(batch))
        kept = [record for record in records if not self.takes(record.key, record.timestamp)]
        gone = len(records) - len(kept)
        return (rebuild_batch(header, kept) if gone else batch), gone

    def hashed(self, topic_id: UUID) -> dict[str, object]:
        """What was asked for, without a key in it."""
        return {
            "hash": HASH,
            "keys": sorted(_hash(topic_id, key) for key in self.keys),
            "key_prefixes": sorted(_hash(topic_id, prefix) for prefix in self.prefixes),
            "before_ms": self.before_ms,
        }

    def job_id(self, topic_id: UUID, partitions: Sequence[int]) -> str:
        """The same for the same erasure, so that one that was cut short goes on as itself."""
        asked = json.dumps([self.hashed(topic_id), sorted(partitions)]).encode()
        return f"erase-{hashlib.blake2b(asked, key=topic_id.bytes, digest_size=16).hexdigest()}"


@dataclass(frozen=True, slots=True)
class BlindSelection(Selection):
    """The same of one topic, by hashes alone: for what is kept in a bucket and told to other machines.

    ``keys`` are hashes, ``prefixes`` the length of each (4 bytes) and the hash of so many bytes of a key.
    """

    topic_id: UUID = NO_TOPIC

    @classmethod
    def of(cls, selection: Selection, topic_id: UUID) -> BlindSelection:
        """``selection``, hashed."""
        prefixes = [len(each).to_bytes(4, "big") + _digest(topic_id, each) for each in selection.prefixes]
        keys = frozenset(_digest(topic_id, key) for key in selection.keys)
        return cls(keys, tuple(sorted(prefixes)), selection.before_ms, topic_id)

    def as_json(self) -> dict[str, Any]:
        """For :meth:`of_json`; the same for the same selection."""
        keys, prefixes = sorted(key.hex() for key in self.keys), [prefix.hex() for prefix in self.prefixes]
        return {"topic_id": self.topic_id.hex, "keys": keys, "prefixes": prefixes, "before_ms": self.before_ms}

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> BlindSelection:
        """The inverse."""
        keys, prefixes = (tuple(bytes.fromhex(each) for each in fields[name]) for name in ("keys", "prefixes"))
        return cls(frozenset(keys), prefixes, fields["before_ms"], UUID(fields["topic_id"]))

    def names(self, key: bytes) -> bool:
        """As of what was hashed: 1 us a key, and one more for each length of a beginning."""
        if self.keys and _digest(self.topic_id, key) in self.keys:
            return True
        return any(
            len(key) >= length and _digest(self.topic_id, key[:length]) in hashes
            for length, hashes in _by_length(self.prefixes)
        )

    def hashed(self, topic_id: UUID) -> dict[str, object]:
        """What was asked for."""
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
