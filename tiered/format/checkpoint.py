r"""The small text files of a log directory, exactly as Kafka writes them.

=============================== ==============================================================
``*-offset-checkpoint``         ``0\n``, count, then ``topic partition offset`` per line
``leader-epoch-checkpoint``     ``0\n``, count, then ``epoch startOffset`` per line
``partition.metadata``          ``version: 0\ntopic_id: <22 characters>``, no newline at the end
``meta.properties``             Java properties
``.kafka_cleanshutdown``        ``{"version":0,"brokerEpoch":N}``, no newline
=============================== ==============================================================

Checkpoints end with a newline. Errors are ``CorruptionError``; their position is a byte offset where known.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from tiered.errors import ConfigError, CorruptionError, NewerFormatError
from tiered.model import EpochEntry, TopicPartition

CHECKPOINT_VERSION = 0
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_UUID_CHARS = 22
_CLUSTER = re.compile(r"[A-Za-z0-9._-]*")
_UUID = re.compile(rf"[A-Za-z0-9_-]{{{_UUID_CHARS}}}")


def _integer(word: str, what: str) -> int:
    if not _INTEGER.fullmatch(word):
        raise CorruptionError(f"the checkpoint's {what} is not an integer: {word[:40]!r}")
    n = int(word)
    if not -(2**63) <= n < 2**63:
        raise CorruptionError(f"{what} {n} does not fit 64 bits")
    return n


def _encode_lines(lines: list[str]) -> str:
    return "\n".join([str(CHECKPOINT_VERSION), str(len(lines)), *lines]) + "\n"


def _decode_lines(text: str, fields: int) -> list[list[str]]:
    """Return the words of each entry line. Accepts CRLF; no bytes or only a version line mean no entries."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return []
    version = _integer(lines[0], "checkpoint version")
    if version != CHECKPOINT_VERSION:
        kind = NewerFormatError if version > CHECKPOINT_VERSION else CorruptionError
        raise kind(f"checkpoint has version {version}, not {CHECKPOINT_VERSION}", position=0)
    if len(lines) == 1:
        return []
    count = _integer(lines[1], "checkpoint entry count")
    entries = lines[2:]
    if count != len(entries):
        raise CorruptionError(f"checkpoint announces {count} entries and has {len(entries)}")
    words = [line.split() for line in entries]
    for i, entry in enumerate(words):
        if len(entry) != fields:
            raise CorruptionError(
                f"malformed checkpoint line {i + 3}: {entries[i][:80]!r} has {len(entry)} words, not {fields}"
            )
    return words


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Return the text of an offset checkpoint, entries in the mapping's order."""
    return _encode_lines([f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()])


def decode_offsets(text: str) -> dict[TopicPartition, int]:
    """Return the entries of an offset checkpoint in file order. The last of duplicates counts.

    Raises ``CorruptionError`` for other text, ``NewerFormatError`` for a newer version.
    """
    return {
        TopicPartition(sys.intern(topic), _integer(partition, "partition")): _integer(offset, "offset")
        for topic, partition, offset in _decode_lines(text, 3)
    }


def encode_epochs(epochs: Iterable[EpochEntry]) -> str:
    """Return the text of a ``leader-epoch-checkpoint``."""
    return _encode_lines([f"{e.epoch} {e.start_offset}" for e in epochs])


def decode_epochs(text: str) -> tuple[EpochEntry, ...]:
    """Return the entries of a ``leader-epoch-checkpoint``, ascending by epoch. The last of duplicates counts.

    Raises ``CorruptionError`` for other text, ``NewerFormatError`` for a newer version.
    """
    starts = {_integer(e, "epoch"): _integer(o, "start offset") for e, o in _decode_lines(text, 2)}
    return tuple(EpochEntry(e, starts[e]) for e in sorted(starts))


def encode_uuid(uuid: UUID) -> str:
    """Return a UUID as Kafka prints it: 22 characters of URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode("ascii")


def decode_uuid(text: str) -> UUID:
    """Return the UUID from Kafka's 22 characters of URL-safe base64. Raises ``CorruptionError`` for other text."""
    if _UUID.fullmatch(text):
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    raise CorruptionError(f"not an id of {_UUID_CHARS} base64 characters: {text[:40]!r}")


def encode_partition_metadata(topic_id: UUID) -> str:
    """Return the text of ``partition.metadata``. Raises ``ConfigError`` for the zero id, which means none."""
    if topic_id.int == 0:
        raise ConfigError("a topic id must not be zero")
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}"


def decode_partition_metadata(text: str) -> UUID:
    """Return the topic id in the text of ``partition.metadata``.

    Raises ``CorruptionError`` for a missing or malformed line or a zero id, ``NewerFormatError`` for a version above 0.
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        words = re.split(r":\s+", line)
        if len(words) != 2:
            raise CorruptionError(f"malformed line in partition.metadata: {line[:80]!r}")
        fields[words[0]] = words[1].strip()
    if "version" not in fields or "topic_id" not in fields:
        raise CorruptionError("partition.metadata lacks version or topic_id")
    if (version := _integer(fields["version"], "version of partition.metadata")) != 0:
        kind = NewerFormatError if version > 0 else CorruptionError
        raise kind(f"partition.metadata has version {fields['version']}, not 0")
    topic_id = decode_uuid(fields["topic_id"])
    if topic_id.int == 0:
        raise CorruptionError("partition.metadata has a zero topic id")
    return topic_id


class MetaProperties(NamedTuple):
    """Contents of ``meta.properties``. ``directory_id`` identifies the disk; None: the file has none, as in version 0.

    ``comments``: the comment lines without ``#``.
    """

    cluster_id: str
    node_id: int
    directory_id: UUID | None
    version: int = 1
    comments: tuple[str, ...] = ("", "")


def decode_properties(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return keys and values of a properties file in the form that Kafka writes, and its comments without ``#``.

    Raises ``CorruptionError`` for a line without a key.
    """
    values: dict[str, str] = {}
    comments: list[str] = []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if line.startswith("#"):
            comments.append(line[1:])
        elif line and not key:
            raise CorruptionError(f"malformed property line: {line[:80]!r}")
        elif line:
            values[key] = value
    return values, tuple(comments)


def encode_meta_properties(meta: MetaProperties) -> str:
    """Return the text of ``meta.properties``: comments, then the keys in the order of Kafka's writer.

    Raises ``ConfigError`` for a cluster id that the format would have to escape.
    """
    if not _CLUSTER.fullmatch(meta.cluster_id):
        raise ConfigError(f"cluster id {meta.cluster_id[:80]!r} is not allowed", hint="use letters, digits, _, - and .")
    lines = [f"#{c}" for c in meta.comments]
    lines.append(f"node.id={meta.node_id}" if meta.version else f"broker.id={meta.node_id}")
    if meta.directory_id is not None:
        lines.append(f"directory.id={encode_uuid(meta.directory_id)}")
    lines.append(f"version={meta.version}")
    lines.append(f"cluster.id={meta.cluster_id}")
    return "\n".join(lines) + "\n"


def decode_meta_properties(text: str) -> MetaProperties:
    """Decode ``meta.properties`` of version 0 or 1. Other keys are ignored.

    Raises ``CorruptionError`` for a missing or malformed value, ``NewerFormatError`` for a newer version.
    """
    values, comments = decode_properties(text)
    version = _integer(values.get("version", "0"), "version of meta.properties")
    if version not in (0, 1):
        kind = NewerFormatError if version > 1 else CorruptionError
        raise kind(f"meta.properties has version {version}, not 0 or 1")
    name = "node.id" if version else "broker.id"
    node = values.get(name)
    if node is None:
        raise CorruptionError(f"meta.properties has no {name}")
    if version and "cluster.id" not in values:
        raise CorruptionError("meta.properties has no cluster.id")
    directory = values.get("directory.id")
    return MetaProperties(
        cluster_id=values.get("cluster.id", ""),
        node_id=_integer(node, name),
        directory_id=None if directory is None else decode_uuid(directory),
        version=version,
        comments=comments,
    )


def encode_clean_shutdown(broker_epoch: int = -1) -> str:
    """Return the content of ``.kafka_cleanshutdown``. Only the file's existence counts; the epoch is informative."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))


def decode_clean_shutdown(text: str) -> int:
    """Return the broker epoch in ``.kafka_cleanshutdown``, -1 if unknown (older Kafka wrote an empty file)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return -1
    epoch = value.get("brokerEpoch") if isinstance(value, dict) and value.get("version") == 0 else None
    return epoch if isinstance(epoch, int) else -1
