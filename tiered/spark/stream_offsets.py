"""Offsets of a stream, as Spark keeps them in its checkpoint, and the range of a trigger. Pure.

::

    {"@": {"start": {"flights": {"0": 20}}, "topic_ids": {"flights": "0d9f..."}}, "flights": {"0": 25, "1": 7}}

Kafka's nested JSON with exclusive ends, so that a user may paste it into ``startingOffsets``. ``@``, which no topic can
be named, has what Kafka's source cannot say:

* ``topic_ids``: topics of the offsets. A topic that was deleted and made again has another id.
* ``start``, in the end of the first batch only: the start of that batch. After a crash in the first batch Spark calls
  ``initialOffset`` again, whose latest offset is later by then. Rows between the two would be lost.

Spark compares offsets as text: keys are sorted, and a trigger without new records returns its argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tiered.errors import ConfigError
from tiered.format.json_schema import INT64_MAX
from tiered.format.keys import check_topic_name
from tiered.model import TopicPartition

RESERVED = "@"
_EXAMPLE = 'for example {"flights": {"0": 23, "1": 5}}'

PerPartition = Mapping[TopicPartition, int]


class AvailableOffsets(NamedTuple):
    """Offsets that a partition has now: ``earliest`` to ``latest`` (exclusive). A trigger may read those below ``end``.

    With ``read_committed`` the ``end`` is the last stable offset, otherwise ``latest``.
    """

    topic_id: str
    earliest: int
    latest: int
    end: int


class Range(NamedTuple):
    """Range of offsets in one partition; ``end`` is exclusive."""

    start: int
    end: int

    @property
    def offsets(self) -> int:
        """Return the number of offsets in the range."""
        return self.end - self.start


class Loss(NamedTuple):
    """Data loss to report: offsets deleted before they were read, or a partition that is gone or went back.

    ``what``: the message. ``offsets``: the number of missing offsets, 0 if unknown. ``requested``: the offset that the
    stream wanted. ``held``: the log's earliest offset and its exclusive end now.
    """

    what: str
    offsets: int
    requested: int
    held: tuple[int, int]


@dataclass(frozen=True)
class StreamOffset:
    """Position of a stream in each partition (exclusive), with the ids of its topics.

    ``start``: the start of the first batch, set in that batch's end only. An initial offset has no topic ids.
    """

    offsets: PerPartition
    topic_ids: Mapping[str, str]
    start: PerPartition | None = None

    @property
    def is_initial(self) -> bool:
        """Return True for the start of a query, where no batch has ended yet."""
        return not self.topic_ids and self.start is None

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON for Spark. Keys are sorted in each object."""
        if self.is_initial:
            return nested(self.offsets)
        more: dict[str, Any] = {} if self.start is None else {"start": nested(self.start)}
        more["topic_ids"] = dict(sorted(self.topic_ids.items()))
        return dict(sorted({RESERVED: more, **nested(self.offsets)}.items()))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Return the offset from the JSON of a checkpoint, or from Kafka's JSON, ``{topic: {partition: offset}}``.

        Raises ConfigError for other JSON.
        """
        topics = dict(value)
        more = topics.pop(RESERVED, {})
        topic_ids, start = (more.get("topic_ids", {}), more.get("start")) if isinstance(more, dict) else (None, None)
        if not isinstance(topic_ids, dict) or not isinstance(start, dict | None):
            raise ConfigError(f"the value of {RESERVED} was not written by this source", hint=_EXAMPLE)
        ids = {str(topic): str(topic_id) for topic, topic_id in topic_ids.items()}
        return cls(per_partition(topics), ids, None if start is None else per_partition(start))


def nested(offsets: PerPartition) -> dict[str, Any]:
    """Return offsets by partition as ``{topic: {partition: offset}}`` with sorted keys."""
    found: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(offsets.items(), key=lambda item: (item[0].topic, str(item[0].partition))):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return dict(sorted(found.items()))


def per_partition(topics: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return ``{topic: {partition: number}}`` as numbers by partition. Raises ConfigError for other JSON."""
    found: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        check_topic_name(topic)
        if not isinstance(partitions, dict):
            raise ConfigError(f"the value of {topic} is not an object of partitions", hint=_EXAMPLE)
        for partition, number in partitions.items():
            if isinstance(number, bool) or not isinstance(number, int) or not partition.isdecimal():
                raise ConfigError(f"{topic}: {partition!r}: {number!r} is not a number", hint=_EXAMPLE)
            if number > INT64_MAX:
                raise ConfigError(f"{topic}: {partition!r}: {number} is larger than an offset can be", hint=_EXAMPLE)
            found[TopicPartition(topic, int(partition))] = number
    return found


def lag(
    start: StreamOffset, extents: Mapping[TopicPartition, AvailableOffsets]
) -> tuple[dict[TopicPartition, Range], list[Loss]]:
    """Return the unread range of each partition for a stream at ``start``, and the losses to report.

    ``extents``: offsets that each partition has now. A partition of the stream without an entry is reported as a loss.

    A partition that is new to the stream is read from offset 0, as is one of a topic that was deleted and created
    again. If a partition now ends below the stream's offset, it is read from its new end on.
    """
    ranges: dict[TopicPartition, Range] = {}
    losses = []
    for tp, offset in sorted(start.offsets.items()):
        if tp not in extents:
            text = f"{tp}: the stream is at offset {offset}, and the partition is deleted or no longer subscribed to"
            losses.append(Loss(text, 0, offset, (0, 0)))
    for tp, extent in sorted(extents.items()):
        known = start.topic_ids.get(tp.topic, extent.topic_id)
        held = (extent.earliest, extent.latest)
        at = start.offsets.get(tp, 0)
        if known != extent.topic_id and tp in start.offsets:
            text = f"{tp}: the topic was made again (id {known}, now {extent.topic_id}), and is read from its start"
            losses.append(Loss(text, 0, at, held))
            at = 0
        if at < extent.earliest:
            text = f"{tp}: offsets {at} to {extent.earliest} are gone, the log holds {held[0]} to {held[1]}"
            losses.append(Loss(text, extent.earliest - at, at, held))
        if at > extent.latest:
            text = f"{tp}: the stream is at offset {at}, the log holds {held[0]} to {held[1]}: it went back"
            losses.append(Loss(text, 0, at, held))
            at = extent.latest
        at = max(at, extent.earliest)
        ranges[tp] = Range(at, max(at, extent.end))
    return ranges, losses


def limited(ranges: Mapping[TopicPartition, Range], most: int) -> dict[TopicPartition, Range]:
    """Cut ranges to ``most`` offsets together, in proportion to their sizes, but at least one offset each."""
    weights = {tp: found.offsets for tp, found in ranges.items()}
    if sum(weights.values()) <= most:
        return dict(ranges)
    shares = proportional(weights, most)
    return {
        tp: Range(found.start, found.start + min(found.offsets, max(1, shares[tp]))) for tp, found in ranges.items()
    }


def proportional(weights: PerPartition, amount: int) -> dict[TopicPartition, int]:
    """Split ``amount`` into whole numbers in proportion to the weights. All are 0 if the weights are."""
    total = sum(weights.values())
    if not total:
        return dict.fromkeys(weights, 0)
    shares = {tp: amount * weight // total for tp, weight in weights.items()}
    rest = amount - sum(shares.values())
    for tp in sorted(weights, key=lambda tp: (-(amount * weights[tp] % total), tp))[:rest]:
        shares[tp] += 1
    return shares


def end_of(
    start: StreamOffset, ranges: Mapping[TopicPartition, Range], extents: Mapping[TopicPartition, AvailableOffsets]
) -> StreamOffset:
    """Return the end offset of a batch that reads ``ranges``; ``start`` itself if no offset and no topic id differs.

    The end of a query's first batch is always a new value, which also contains ``start``.
    """
    offsets = {tp: found.end for tp, found in ranges.items()}
    topic_ids = {tp.topic: extent.topic_id for tp, extent in extents.items()}
    if start.is_initial:
        return StreamOffset(offsets, topic_ids, start.offsets)
    same = offsets == dict(start.offsets) and topic_ids == dict(start.topic_ids)
    return start if same else StreamOffset(offsets, topic_ids)


def batch_ranges(start: StreamOffset, end: StreamOffset) -> dict[TopicPartition, Range]:
    """Return the ranges of the batch between two offsets, by partition, without empty ones."""
    begun = end.start if end.start is not None else start.offsets
    ranges: dict[TopicPartition, Range] = {}
    for tp, until in sorted(end.offsets.items()):
        again = start.topic_ids.get(tp.topic, end.topic_ids.get(tp.topic)) != end.topic_ids.get(tp.topic)
        at = 0 if again and end.start is None else begun.get(tp, 0)
        if at < until:
            ranges[tp] = Range(at, until)
    return ranges
