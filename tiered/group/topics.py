"""Topics of a group as the bucket has them: how many partitions, and where a group begins to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from tiered.errors import LogDestroyedError
from tiered.format.root import STATE_OPEN
from tiered.group.objects import PlannedTopic
from tiered.model import Position, TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN
from tiered.read.bucket import BucketReads
from tiered.read.stream import TierStream
from tiered.remote.topics import TopicEntry, load_topic_to_read
from tiered.store.base import Steps


class BucketTopics:
    """Topics of one bucket (``group.member.GroupTopics``). ``start``: "earliest", "latest", or a time: ``start_ms``."""

    def __init__(self, bucket: BucketReads, start: str, start_ms: int | None) -> None:
        self._bucket, self._start, self._start_ms = bucket, start, start_ms
        self._entries: dict[str, TopicEntry] = {}

    def find_topics(self, names: Sequence[str]) -> Steps[Mapping[str, PlannedTopic]]:
        """Return the topics that exist, one GET for each. One that is being deleted does not exist."""
        found = {}
        for name in names:
            entry = yield from load_topic_to_read(name)
            if entry is not None and entry.state == STATE_OPEN:
                self._entries[name] = entry
                found[name] = PlannedTopic(entry.topic_id, entry.partitions, entry.partitions)
        return found

    def open_stream(self, tp: TopicPartition, topic_id: UUID) -> Steps[TierStream]:
        """Open a refreshed stream of one partition. Raises LogDestroyedError if the topic is another one now."""
        entry = self._entries.get(tp.topic)
        if entry is None or entry.topic_id != topic_id or tp.partition >= entry.partitions:
            yield from self.find_topics([tp.topic])
            entry = self._entries.get(tp.topic)
        if entry is None or entry.topic_id != topic_id or tp.partition >= entry.partitions:
            raise LogDestroyedError(f"topic {tp.topic} ({topic_id}) was deleted, and perhaps made again")
        stream = TierStream(tp, local=None, remote=self._bucket.partition(tp, entry, NOTHING_KNOWN))
        yield from stream.refresh()
        return stream

    def resolve(self, tp: TopicPartition, topic_id: UUID, *, from_start: bool) -> Steps[Position]:
        """Return the position at which a group begins that has none. Raises LogDestroyedError."""
        stream = yield from self.open_stream(tp, topic_id)
        offset = yield from self._offset(stream, from_start=from_start)
        yield from stream.release()
        return Position(offset)

    def _offset(self, stream: TierStream, *, from_start: bool) -> Steps[int]:
        if from_start:
            return (yield from stream.earliest())
        if self._start_ms is None:
            return (yield from stream.offset(self._start))
        found = yield from stream.offset_for_time(self._start_ms)
        return (yield from stream.latest()) if found is None else found[0]
