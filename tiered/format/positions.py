"""Copy of consumer group positions: the object ``positions`` beside a partition's root. JSON.

::

    {"format": 1, "topic": "orders", "epoch": 7, "commit": "<32 hex>",
     "groups": [["billing", 1000, 3, "", 1700000000000]]}

``epoch`` is that of the writer's claim. A group has its offset, leader epoch, metadata and commit time. ``commit`` is
new in each body, so that ETags never repeat.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

from tiered.errors import ConfigError
from tiered.format.json_schema import HEX_128, INT32, INT32_MAX, NUMBER, TEXT, TIME_MS, JsonObject, ListOf, ValueType
from tiered.model import Position

FORMAT = 1
MAX_POSITIONS_BYTES = 8 * 1024 * 1024
_NAME = ValueType(str, 0, 32767)
"""Name of a group, or metadata: Kafka's records limit a text to this number of bytes."""
_SHAPE = {
    "topic": TEXT,
    "epoch": INT32,
    "commit": HEX_128,
    "groups": ListOf(
        {
            "group": _NAME,
            "offset": NUMBER,
            "leader_epoch": ValueType(int, -1, INT32_MAX),
            "metadata": _NAME,
            "committed_ms": TIME_MS,
        },
        MAX_POSITIONS_BYTES,
    ),
}

Positions = Mapping[str, Position]
"""Positions in one partition, by group."""


@dataclass(frozen=True, slots=True)
class PositionsCopy:
    """Content of a ``positions`` object. ``groups``: committed position of each group in the partition.

    ``epoch``: that of the writer's claim. ``commit``: id of the PUT that wrote the object.
    """

    topic: str
    epoch: int
    groups: Positions
    commit: int


def encode_positions(copy: PositionsCopy, *, key: str) -> bytes:
    """Return the bytes of the object ``key``. Raises ConfigError, which names it, above ``MAX_POSITIONS_BYTES``."""
    groups = [[group, *astuple(at)] for group, at in sorted(copy.groups.items())]
    fields = {"format": FORMAT, "topic": copy.topic, "epoch": copy.epoch, "commit": f"{copy.commit:032x}"}
    body = json.dumps({**fields, "groups": groups}, separators=(",", ":")).encode()
    if len(body) > MAX_POSITIONS_BYTES:
        raise ConfigError(
            f"{key}: the positions of {len(groups)} groups have {len(body)} bytes, more than {MAX_POSITIONS_BYTES}",
            hint="`tiered group delete GROUP` deletes a group that is no longer used",
        )
    return body


def decode_positions(data: bytes, *, key: str) -> PositionsCopy:
    """Decode the ``positions`` object ``key``. Raises CorruptionError for damage, ConfigError for a newer format."""
    fields = JsonObject(data, key=key)
    fields.check_format(FORMAT)
    values = fields.checked_fields({"format": ValueType(int, 1, FORMAT), **_SHAPE})
    groups = {group: Position(*position) for group, *position in values["groups"]}
    return PositionsCopy(values["topic"], values["epoch"], groups, values["commit"])


def within(groups: Positions, start: int, end: int) -> dict[str, Position]:
    """Return the positions, with offsets below ``start`` or above ``end`` replaced by ``start`` or ``end``.

    A position with a replaced offset has leader epoch -1.
    """
    return {
        group: at if start <= at.offset <= end else replace(at, offset=min(max(at.offset, start), end), leader_epoch=-1)
        for group, at in groups.items()
    }


def are_equal(one: Positions, other: Positions) -> bool:
    """Return True if both copies have the same positions. Commit times may differ."""
    return one.keys() == other.keys() and all(
        replace(at, committed_ms=0) == replace(other[group], committed_ms=0) for group, at in one.items()
    )
