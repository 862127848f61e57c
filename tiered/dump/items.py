"""What is found in files, one value each: printed as JSON, as a line for people, or as Kafka's tool prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tiered.dump.content import Content
from tiered.dump.kafka import batch_line, codec_word, record_line, record_sequence, time_type
from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, control_type
from tiered.format.control import control_message
from tiered.format.keys import MAX_INT64
from tiered.format.legacy import Message
from tiered.model import Record
from tiered.times import format_time

_PLACES = {"index_entry": "offset", "time_index_entry": "offset", "aborted_txn": "last_offset"}


class Item(Protocol):
    """One thing in a file: ``kind`` is its ``message_type``."""

    @property
    def kind(self) -> str: ...

    def fields(self) -> dict[str, Any]:
        """For JSON; names are only ever added."""

    def text(self) -> str:
        """For people."""

    def kafka(self) -> str | None:
        """The line of Kafka's tool; None where it has none."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a small file."""

    kind: str
    values: dict[str, Any]
    line: str
    kafka_line: str | None = None

    @property
    def place(self) -> int:
        """The offset in the log where an index entry belongs; of any other entry the largest there is."""
        name = _PLACES.get(self.kind)
        return MAX_INT64 if name is None else int(self.values[name])

    def fields(self) -> dict[str, Any]:
        return self.values

    def text(self) -> str:
        return self.line

    def kafka(self) -> str | None:
        return self.kafka_line


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A batch; ``valid`` if its CRC holds."""

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

    def kafka(self) -> str:
        return batch_line(self.header, self.position, valid=self.valid)


@dataclass(frozen=True, slots=True)
class RecordItem:
    """A record of the batch at ``position``; ``message`` is the v0 or v1 message that it was, and if its CRC holds."""

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

    def kafka(self) -> str:
        key, value = self.content.kafka(self.record)
        legacy = ""
        if self.message is not None:
            # The closing brace stands in Kafka's own output.
            legacy = f" isValid: {'true' if self.message[1] else 'false'} crc: {self.message[0].crc}}}"
        return record_line(self.record, self.header, key, value, metadata=self.content.metadata, legacy=legacy)

    def _control(self) -> dict[str, Any]:
        kind = control_type(self.record).name
        try:
            _, data = control_message(self.record)
        except CorruptionError as damage:
            return {"control_type": kind, "undecoded": damage.message}
        if "coordinatorEpoch" in data:
            return {"control_type": kind, "coordinator_epoch": data["coordinatorEpoch"]}
        return {"control_type": kind, "control_data": data}


@dataclass(frozen=True, slots=True)
class Tail:
    """Bytes behind the last whole batch; ``zeros`` if they are nothing else."""

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

    def kafka(self) -> str | None:
        return None if self.zeros else f"Found {self.size_bytes} invalid bytes at the end of {self.name}"
