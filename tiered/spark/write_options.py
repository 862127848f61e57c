"""Parser of the options of the Spark sink. Names are those of Spark's Kafka sink, where it has them.

========================================  =============================================================================
``path``                                  URL of the bucket (also as ``save(path)`` and ``start(path)``)
``endpoint_url``, ``region``              of an S3 server that is not AWS
``expected_bucket_owner``                 account id that must own the bucket
``topic``                                 topic of all rows; wins over a column ``topic``
``txnId``                                 of a batch job that may run again: rows of the same id are added once
``createTopic``                           a number of partitions: a missing topic is made with so many
``checkpointLocation``, ``queryName``     Spark's own, of a stream: its exactly-once rests on the checkpoint
========================================  =============================================================================

Users copy their options from a query on a broker. Those without a meaning here are refused, with their replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiered.config import MAX_PARTITIONS
from tiered.errors import ConfigError
from tiered.format.keys import check_topic_name, check_txn
from tiered.spark.options import check_names, option_value
from tiered.spark.options import replacement as read_replacement

NAMES = (
    "path",
    "endpoint_url",
    "region",
    "expected_bucket_owner",
    "topic",
    "txnId",
    "createTopic",
    "checkpointLocation",
    "queryName",
)

_TOPIC_SETTING = "leave it out: it is a setting of the topic, as compression.type; `tiered topic set` changes it"
_ONCE = "leave it out: rows are added exactly once by the stream's checkpoint; a batch job has option txnId"
_REPLACED = {
    "includeheaders": "leave it out: a column headers is written if there is one",
    "subscribe": 'option("topic", "flights"): subscribe is an option of reads',
    "subscribepattern": 'option("topic", "flights"): subscribePattern is an option of reads',
    "assign": "leave it out: a column partition says where a row goes",
    "kafka.acks": "leave it out: what was committed is in the bucket",
    "kafka.compression.type": _TOPIC_SETTING,
    "kafka.batch.size": _TOPIC_SETTING,
    "kafka.linger.ms": "leave it out: nothing waits; a trigger says how often a stream writes",
    "kafka.max.request.size": "leave it out: max.message.bytes of the topic bounds a record",
    "kafka.retries": "leave it out: requests to the bucket are retried automatically",
    "kafka.partitioner.class": "leave it out: the key decides as Kafka's producer does it; a column partition wins",
    "kafka.enable.idempotence": _ONCE,
    "kafka.transactional.id": _ONCE,
    "kafka.transaction.timeout.ms": _ONCE,
    "kafka.key.serializer": "leave it out: key and value are binary or string",
    "kafka.value.serializer": "leave it out: key and value are binary or string",
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write, checked without the bucket. None: the option was not given.

    ``txn_id``: ``txnId``, which identifies a batch job that may run again. ``create_partitions``: ``createTopic``, the
    number of partitions with which a missing topic is created.
    """

    path: str
    endpoint_url: str | None = None
    region: str | None = None
    expected_bucket_owner: str | None = None
    topic: str | None = None
    txn_id: str | None = None
    create_partitions: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Return the checked options. ``streaming``: the write is a stream, for which ``txnId`` is refused.

        Raises ConfigError for an unknown or missing option, or a bad value.
        """
        given = {key.lower(): str(value) for key, value in options.items()}
        check_names(given, NAMES, replacement, "Kafka's sink")
        path = given.get("path")
        if not path:
            raise ConfigError(
                "option path is missing: Spark does not pass the path of a catalog table to a Python source",
                hint='write.format("tiered").option("topic", name).save("s3://bucket/prefix")',
            )
        txn_id = option_value(given, "txnId", check_txn, None)
        if streaming and txn_id is not None:
            raise ConfigError(
                "option txnId is only for batch jobs, and this is a stream",
                hint="leave txnId out: a stream is identified by its checkpoint; inside foreachBatch give it",
            )
        return cls(
            path=path,
            endpoint_url=given.get("endpoint_url"),
            region=given.get("region"),
            expected_bucket_owner=given.get("expected_bucket_owner"),
            topic=option_value(given, "topic", check_topic_name, None),
            txn_id=txn_id,
            create_partitions=option_value(given, "createTopic", _partitions, None),
        )


def _partitions(text: str) -> int:
    digits = text.strip()
    if not digits.isdecimal() or not 1 <= int(digits) <= MAX_PARTITIONS:
        raise ConfigError(f"it is not a number of partitions from 1 to {MAX_PARTITIONS}", hint="for example 3")
    return int(digits)


def replacement(name: str) -> str:
    """Return a hint that says what to use instead of ``name`` (in lower case), an option of Kafka or reads.

    ``""`` for any other name.
    """
    if name in _REPLACED:
        return _REPLACED[name]
    return read_replacement(name)
