"""Topics that rows go to, by the bucket's registry; a missing one is made if the user asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from tiered.clock import SystemIds
from tiered.errors import ConfigError, UnknownTopicError
from tiered.format.keys import check_topic_name
from tiered.format.root import STATE_OPEN
from tiered.remote.sink_commit import need_partition
from tiered.remote.topics import TopicEntry, load_topic, register_topic
from tiered.spark.staging import SinkTopic
from tiered.spark.write_options import WriteOptions
from tiered.store.base import Store
from tiered.store.driver import drive

Finder = Callable[[str | None], SinkTopic]


def find_topic(options: WriteOptions, store: Store, name: str) -> SinkTopic:
    """Return the topic, by one GET. Make a missing one if ``createTopic`` was given.

    Raises UnknownTopicError with the command that creates it, ConfigError for a topic that is being deleted.
    """
    entry = drive(store, load_topic(check_topic_name(name)))
    if entry is None and options.create_partitions is not None:
        entry = drive(store, register_topic(name, SystemIds().uuid(), options.create_partitions, MappingProxyType({})))
    if entry is None:
        raise UnknownTopicError(
            f"there is no topic {name} in {options.path}",
            hint=f'option("createTopic", "3") makes it with 3 partitions, as `tiered topic create {name} --remote '
            f"{options.path} --partitions 3` does",
        )
    if entry.state != STATE_OPEN:
        raise ConfigError(f"topic {name} is {entry.state}: nothing can be written to it", hint="write to another topic")
    return _sink_topic(entry)


def _sink_topic(entry: TopicEntry) -> SinkTopic:
    return SinkTopic(entry.name, entry.topic_id, entry.partitions, entry.settings)


@dataclass(frozen=True, slots=True)
class SinkTopics:
    """Topic that the planner found. Topics that only rows name are looked up by the task that meets them."""

    options: WriteOptions
    named: SinkTopic | None

    @classmethod
    def plan(cls, options: WriteOptions, store: Store) -> SinkTopics:
        """Look up the topic of the option, so that a missing one, or a local log's, is reported before any task runs.

        A job with a ``txnId`` may be committed already: only its commit judges.
        """
        named = None if options.topic is None else find_topic(options, store, options.topic)
        if named is not None and options.txn_id is None:
            drive(store, need_partition(named.name, named.topic_id, named.partitions))
        return cls(options, named)

    def finder(self, store: Store) -> Finder:
        """Return a function that looks up each topic once in the life of a task."""
        found: dict[str, SinkTopic] = {}

        def find(name: str | None) -> SinkTopic:
            if name is None:
                if self.named is None:
                    raise ConfigError("no topic was named", hint='option("topic", ...) or a column topic')
                return self.named
            if name not in found:
                found[name] = find_topic(self.options, store, name)
            return found[name]

        return find
