"""Options of Spark's Kafka source that mean nothing here -> the line that replaces each.

Users copy their options from a query on a broker. What has a meaning here is honoured under Kafka's name
(``tiered.spark.options``); everything else is refused, so that nobody believes that it had an effect.
"""

from __future__ import annotations

_LOGIN = (
    "leave it out: there is no broker to log in to; driver and executors take the bucket's credentials from their "
    "environment, profile or instance role"
)
_GROUP = "leave it out: there is no consumer group; startingOffsets and endingOffsets say what is read"
_POLLING = "leave it out: nothing is polled, and requests to the bucket are repeated by themselves"
_STREAM = "leave it out: it belongs to a stream; a batch query is bounded by endingOffsets or endingTimestamp"
_BYTES = 'option("slice_bytes", "128m"): bytes of one task; reads ahead are bounded by themselves'
_COLUMNS = "leave it out: key and value are binary; select cast(key as string), cast(value as string)"

_REPLACED = {
    "kafka.bootstrap.servers": 'leave it out: there is no broker; .load("s3://bucket/prefix") names the log',
    "kafka.group.id": _GROUP,
    "groupidprefix": _GROUP,
    "kafka.client.id": _GROUP,
    "kafka.client.rack": "leave it out: there is no broker to be near to",
    "kafka.isolation.level": 'option("isolation.level", "read_committed")',
    "kafka.auto.offset.reset": 'option("startingOffsets", "earliest"), and failOnDataLoss=false where offsets are gone',
    "kafka.enable.auto.commit": _GROUP,
    "kafka.auto.commit.interval.ms": _GROUP,
    "kafka.max.poll.records": 'option("maxRecordsPerPartition", "1000000")',
    "kafka.max.partition.fetch.bytes": _BYTES,
    "kafka.fetch.max.bytes": _BYTES,
    "kafka.fetch.min.bytes": _BYTES,
    "kafka.receive.buffer.bytes": _BYTES,
    "kafka.check.crcs": "leave it out: the CRC of every batch is checked",
    "kafka.key.deserializer": _COLUMNS,
    "kafka.value.deserializer": _COLUMNS,
    "kafka.partition.assignment.strategy": 'option("minPartitions", "8") cuts the work; option("assign", ...) chooses',
    "minoffsetspertrigger": _STREAM,
    "maxoffsetspertrigger": _STREAM,
    "maxbytespertrigger": _STREAM,
    "maxtriggerdelay": _STREAM,
    "topic": 'option("subscribe", "flights"): topic is an option of writes',
}
_FAMILIES = (
    ("kafka.security.", _LOGIN),
    ("kafka.sasl.", _LOGIN),
    ("kafka.ssl.", _LOGIN),
    ("kafkaconsumer.", _POLLING),
    ("fetchoffset.", _POLLING),
    ("kafka.", "leave it out: it is a setting of a client of brokers, and there is no broker"),
)
_BARE = ("bootstrap.servers", "group.id", "security.protocol", "sasl.", "ssl.", "auto.offset.reset", "max.poll.records")


def replacement(name: str) -> str:
    """What to write in place of the option ``name`` (in lower case); empty if it is none of Kafka's."""
    if name.startswith(_BARE):  # as a Kafka client's properties have it, without Spark's prefix
        name = f"kafka.{name}"
    if name in _REPLACED:
        return _REPLACED[name]
    return next((line for prefix, line in _FAMILIES if name.startswith(prefix)), "")
