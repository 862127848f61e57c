"""Items found in files, one value each, printed as JSON or as a line of text.

:func:`log_items` yields those of a ``.log`` or of a KRaft snapshot, from an offset on, up to a limit. :class:`Content`
says how much of the records is shown. Keys and values are text, base64, or decoded records of coordinators.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tiered.check.inspection import WINDOW_BYTES, batches
from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, control_type, decode_records, read_header, verify_batch
from tiered.format.codecs import MAX_DECOMPRESSED_BYTES, Codec, codec_of, decompress
from tiered.format.control import ControlType, coordinator_epoch
from tiered.format.coordinator_records import (
    NO_ID,
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TxnValue,
    decode_group_key,
    decode_position,
    decode_transaction,
    decode_transaction_key,
)
from tiered.format.kernels import Record
from tiered.format.keys import MAX_INT64
from tiered.format.legacy import Message, inner_messages, read_message, verify_message
from tiered.local.directory.read_only_log import PartitionFolder, folder_named
from tiered.model import ByteSource
from tiered.plan.producer import SEQUENCES
from tiered.program.records import encoded_fields
from tiered.times import format_time

_PLACES = {"index_entry": "offset", "time_index_entry": "offset", "aborted_txn": "last_offset"}


@dataclass(frozen=True, slots=True)
class Content:
    """Parts of records to show. ``deep``: records at all; ``data``: also their keys and values.

    ``decoder``: that of whole records, ``offsets``, ``transactions`` or ``none``.
    """

    deep: bool = False
    data: bool = False
    decoder: str = "none"

    def fields(self, record: Record) -> dict[str, Any]:
        """Return the record's content as JSON fields: ``key``, ``value``, ``headers``, ``encoding``.

        With a decoder of whole records also ``decoded``, or ``undecoded`` with the reason. Without ``data`` only
        ``header_keys``.
        """
        if not self.data:
            return {"header_keys": [name for name, _ in record.headers]}
        found = encoded_fields(shown(record.key), shown(record.value), record.headers)
        if self.decoder != "none":
            try:
                found["decoded"] = _decoded(record, self.decoder)
            except CorruptionError as damage:
                found["undecoded"] = damage.message
        return found

    def text(self, record: Record) -> str:
        """Return the text of a record's key, value and headers, without terminal control characters.

        Without ``data`` only the names of the headers.
        """
        if not self.data:
            names = [name for name, _ in record.headers]
            return f" header keys {names!r}" if names else ""
        fields = self.fields(record)
        pairs = ", ".join(f"{name!r}: {_plain(content)}" for name, content in record.headers)
        headers = f" headers {{{pairs}}}" if pairs else ""
        decoded = fields.get("decoded")
        if decoded is not None:
            return f" key {_json(decoded['key'])} value {_json(decoded['value'])}{headers}"
        note = f" ({fields['undecoded']})" if "undecoded" in fields else ""
        return f" key {_plain(record.key)} value {_plain(record.value)}{headers}{note}"


def decoder_for(directory: str) -> str:
    """Return the decoder of whole records: that of the topic of the partition folder ``directory``, or ``none``."""
    folder = folder_named(directory)
    topic = folder.tp.topic if isinstance(folder, PartitionFolder) else ""
    return {OFFSETS_TOPIC: "offsets", TRANSACTION_STATE_TOPIC: "transactions"}.get(topic, "none")


def _decoded(record: Record, decoder: str) -> dict[str, Any]:
    """Return key and value of a coordinator's record with the names of Kafka's own tool."""
    if record.key is None:
        raise CorruptionError(f"the record at offset {record.offset} has no key", offset=record.offset)
    number, key, value = 0, dict[str, Any](), dict[str, Any]()
    if decoder == "transactions":
        key = {"transactionalId": decode_transaction_key(record.key)}
        value = {} if record.value is None else _transaction(decode_transaction(record.value))
    else:
        number, group, tp = decode_group_key(record.key)
        if tp is None:
            raise CorruptionError(f"record type {number} is not decoded", offset=record.offset)
        key = {"group": group, "topic": tp.topic, "partition": tp.partition}
        if record.value is not None:
            found = decode_position(record.value)
            value = {"offset": found.offset, "leaderEpoch": found.leader_epoch, "metadata": found.metadata}
            value["commitTimestamp"] = found.committed_ms
    version = "" if record.value is None else str(int.from_bytes(record.value[:2], "big"))
    return {
        "key": {"type": str(number), "data": key},
        "value": None if record.value is None else {"version": version, "data": value},
    }


def _transaction(value: TxnValue) -> dict[str, Any]:
    partitions = [{"topic": topic, "partitionIds": numbers} for topic, numbers in value.by_topic().items()]
    return {
        "producerId": value.producer_id,
        **({} if value.previous_producer_id == NO_ID else {"previousProducerId": value.previous_producer_id}),
        **({} if value.next_producer_id == NO_ID else {"nextProducerId": value.next_producer_id}),
        "producerEpoch": value.producer_epoch,
        "transactionTimeoutMs": value.timeout_ms,
        "transactionStatus": int(value.state),
        "transactionPartitions": None if value.partitions is None else partitions,
        "transactionLastUpdateTimestampMs": value.last_update_ms,
        "transactionStartTimestampMs": value.start_ms,
        **({"clientTransactionVersion": value.client_version} if value.client_version else {}),
    }


def shown(content: bytes | None) -> tuple[str | None, str]:
    """Return (text, "utf-8") for content in UTF-8, otherwise (its base64, "base64"). (None, ``""``) for null."""
    if content is None:
        return None, ""
    try:
        return content.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode("ascii"), "base64"


def _plain(content: bytes | None) -> str:
    """Return the content as a Python literal, for a terminal: a text, or b'...' for bytes that are none."""
    value, word = shown(content)
    return repr(content if word == "base64" else value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Entry of a small file, such as an index or a checkpoint. ``values``: its JSON fields. ``line``: its text."""

    kind: str
    values: dict[str, Any]
    line: str

    @property
    def place(self) -> int:
        """Return the log offset of an index entry. For other entries return the largest possible offset."""
        name = _PLACES.get(self.kind)
        return MAX_INT64 if name is None else int(self.values[name])

    def fields(self) -> dict[str, Any]:
        return self.values

    def text(self) -> str:
        return self.line


@dataclass(frozen=True, slots=True)
class BatchItem:
    """Batch of a ``.log`` at byte ``position``. ``valid``: True if its lengths, counts and CRC are right."""

    header: BatchHeader
    position: int
    valid: bool
    kind: str = "batch"

    def fields(self) -> dict[str, Any]:
        header = self.header
        return {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "count": header.records_count,
            "position": self.position,
            "size_bytes": header.size_bytes,
            "max_timestamp": header.max_timestamp,
            "timestamp_type": time_type(header),
            "magic": header.magic,
            "codec": codec_word(header),
            "crc": header.crc,
            "valid": self.valid,
            "leader_epoch": header.leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "last_sequence": header.last_sequence,
            "transactional": header.is_transactional,
            "control": header.is_control,
            "delete_horizon_ms": header.delete_horizon_ms,
        }

    def text(self) -> str:
        header = self.header
        marks = " transactional" if header.is_transactional else ""
        marks += " control" if header.is_control else ""
        marks += f" delete horizon {header.delete_horizon_ms}" if header.has_delete_horizon else ""
        producer = f" producer {header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}"
        return (
            f"batch {header.base_offset}..{header.last_offset} count {header.records_count} position {self.position}"
            f" size {header.size_bytes} {time_type(header)} {header.max_timestamp}"
            f" ({format_time(header.max_timestamp)}) codec {codec_word(header)} magic {header.magic}"
            f" epoch {header.leader_epoch}{producer if header.producer_id >= 0 else ''}{marks}"
            f" crc {header.crc:#010x} {'valid' if self.valid else 'INVALID'}"
        )


@dataclass(frozen=True, slots=True)
class RecordItem:
    """Record of the batch at byte ``position``. ``content``: the parts to show.

    ``message``: its v0 or v1 message, and True if the CRC of that matches; None in a v2 batch.
    """

    record: Record
    header: BatchHeader
    position: int
    content: Content
    message: tuple[Message, bool] | None = None
    kind: str = "record"

    def fields(self) -> dict[str, Any]:
        record, header = self.record, self.header
        found = {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": time_type(header),
            "leader_epoch": header.leader_epoch,
            "batch_position": self.position,
            "sequence": record_sequence(record, header),
            "key_size": -1 if record.key is None else len(record.key),
            "value_size": -1 if record.value is None else len(record.value),
        }
        if self.message is not None:
            found |= {"crc": self.message[0].crc, "valid": self.message[1]}
        if header.is_control:
            found |= self._control()
        return found | self.content.fields(record)

    def text(self) -> str:
        record = self.record
        start = f"| {record.offset} {record.timestamp}"
        if not self.header.is_control:
            return start + self.content.text(record)
        found = self._control()
        details = "".join(f" {name} {value}" for name, value in found.items() if name != "control_type")
        return f"{start} {found['control_type']}{details}"

    def _control(self) -> dict[str, Any]:
        kind = control_type(self.record)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return {"control_type": kind.name}
        try:
            return {"control_type": kind.name, "coordinator_epoch": coordinator_epoch(self.record)}
        except CorruptionError as damage:
            return {"control_type": kind.name, "undecoded": damage.message}


@dataclass(frozen=True, slots=True)
class Tail:
    """Bytes after the last whole batch of a file. ``zeros``: True if all are zero."""

    position: int
    size_bytes: int
    zeros: bool
    name: str
    kind: str = "tail"

    def fields(self) -> dict[str, Any]:
        return {"position": self.position, "size_bytes": self.size_bytes, "zeros": self.zeros}

    def text(self) -> str:
        what = "zero bytes" if self.zeros else "bytes of an unfinished batch"
        return f"{self.size_bytes} {what} follow the last whole batch"


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """Limits on batches: from the one with ``offset``, at most ``max_batches`` and ``max_bytes``. None: no limit."""

    offset: int | None = None
    max_batches: int | None = None
    max_bytes: int | None = None

    @property
    def start(self) -> int:
        """Return the offset to begin at, 0 without one."""
        return self.offset or 0


Item = FileEntry | BatchItem | RecordItem | Tail
"""Item of a file. ``kind``: its ``message_type`` in JSON; ``fields()``: its JSON fields; ``text()``: its line."""


def log_items(name: str, source: ByteSource, window: BatchWindow, content: Content) -> Iterator[Item]:
    """Yield the batches in ``window`` and, if ``content`` wants them, the records of valid ones.

    The bytes after the file's last batch follow, unless a limit of ``window`` was exceeded. ``name``: that of the file.
    Raises CorruptionError, with the position, at a damaged record or where no batch can begin. Zeros up to the end of
    the file raise nothing: they are bytes after the last batch.
    """
    end, taken, size_bytes = 0, 0, 0
    try:
        for position, data in batches(source):
            header, valid = _checked(data, position)
            end = position + len(data)
            if header.last_offset < window.start:
                continue
            taken, size_bytes = taken + 1, size_bytes + len(data)
            if _beyond(window.max_batches, taken) or _beyond(window.max_bytes, size_bytes):
                return
            yield BatchItem(header, position, valid)
            if content.deep and valid:
                yield from record_items(data, header, position, content)
    except CorruptionError as damage:
        if end == source.size or damage.position != end or not _only_zeros(source, end):
            raise
    if end < source.size:
        yield Tail(end, source.size - end, _only_zeros(source, end), name)


def _beyond(limit: int | None, count: int) -> bool:
    return limit is not None and count > limit


def _checked(data: memoryview, position: int) -> tuple[BatchHeader, bool]:
    try:
        return verify_batch(data), True
    except CorruptionError:
        pass
    try:
        return read_header(data), False
    except CorruptionError as damage:
        raise CorruptionError(damage.message, position=position, offset=damage.offset) from None


def record_items(data: memoryview, header: BatchHeader, position: int, content: Content) -> Iterator[RecordItem]:
    """Yield the records of a batch. Raises CorruptionError, with the batch's ``position``, at a damaged record."""
    try:
        messages = _messages(data) if header.magic < 2 else None
        for number, record in enumerate(decode_records(data)):
            yield RecordItem(record, header, position, content, messages[number] if messages else None)
    except CorruptionError as damage:
        raise CorruptionError(
            f"the records of the batch cannot be read: {damage.message}", position=position, offset=header.base_offset
        ) from None


def _messages(data: memoryview) -> list[tuple[Message, bool]]:
    """Return the v0 or v1 message in ``data``, or those inside it if it is compressed. True: the CRC matches."""
    wrapper = read_message(data, 0)
    codec = codec_of(wrapper.attributes)
    if codec is Codec.NONE:
        return [(wrapper, _is_valid_message(data, wrapper))]
    key_bytes = int.from_bytes(data[wrapper.body : wrapper.body + 4], "big", signed=True)
    start = wrapper.body + 4 + max(key_bytes, 0) + 4
    inner = decompress(codec, data[start:], max_bytes=MAX_DECOMPRESSED_BYTES, legacy_lz4=wrapper.magic == 0)
    return [(message, _is_valid_message(message_bytes, message)) for message, message_bytes in inner_messages(inner)]


def _is_valid_message(data: memoryview, message: Message) -> bool:
    try:
        verify_message(data, message)
    except CorruptionError:
        return False
    return True


def _only_zeros(source: ByteSource, position: int) -> bool:
    while position < source.size:
        length = min(WINDOW_BYTES, source.size - position)
        if any(source.read_at(position, length)):
            return False
        position += length
    return True


def record_sequence(record: Record, header: BatchHeader) -> int:
    """Return the producer's sequence number of a record, -1 without a producer."""
    if header.base_sequence < 0:
        return -1
    return (header.base_sequence + record.offset - header.base_offset) % SEQUENCES


def time_type(header: BatchHeader) -> str:
    """Return ``CreateTime``, ``LogAppendTime``, or, for v0 messages, ``NoTimestampType``."""
    return header.timestamp_type.label if header.magic else "NoTimestampType"


def codec_word(header: BatchHeader) -> str:
    """Return the name of the batch's codec, ``unknown(n)`` for an unassigned number."""
    number = header.attributes & 7
    return Codec(number).label if number in list(Codec) else f"unknown({number})"
