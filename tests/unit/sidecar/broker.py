"""A broker's log directory that lives: a finished one is written again, step by step, as a broker would write it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tiered
from tiered.clock import SystemIds
from tiered.engine.drain import DrainMode
from tiered.engine.reports import Exit
from tiered.format.checkpoint import encode_epochs
from tiered.format.local_names import LOG_SUFFIX, log_name, partition_dir, snapshot_name
from tiered.local.disk.directory_files import (
    CLEANER_NAME,
    LOG_START_NAME,
    RECOVERY_POINT_NAME,
    REPLICATION_NAME,
    OffsetsFile,
)
from tiered.local.disk.files import Files, PosixFiles
from tiered.local.disk.partition_files import log_bases
from tiered.model import EpochEntry, TopicPartition
from tiered.sidecar.mirror import HELD_BYTES, Mirror, beside
from tiered.store.location import StoreLocation
from uploader.config import Settings
from uploader.service import Service, ServicePlace

FILES = PosixFiles()
SIDE = (".index", ".timeindex", ".txnindex")


class Broker:
    """One partition of ``finished``, in ``path``. Segments are counted from 0."""

    def __init__(self, finished: Path, path: Path, tp: TopicPartition) -> None:
        self.path = path
        self.tp = tp
        self.source = finished / partition_dir(tp)
        self.folder = path / partition_dir(tp)
        self.bases = log_bases(FILES, self.source)
        self.folder.mkdir(parents=True)
        shutil.copy(finished / "meta.properties", path)
        self.copy_small_files()
        self.mark({})
        self.written = 0
        self.first = 0

    def copy_small_files(self) -> None:
        for name in ("partition.metadata", "leader-epoch-checkpoint"):
            if (self.source / name).exists():
                shutil.copy(self.source / name, self.folder)

    def roll(self, sealed: int, *, mark: bool = True) -> int:
        """Segments before ``sealed`` are whole, that one is active and half written. Returns the end of the sealed."""
        for number in range(self.written, sealed):
            base, after = self.bases[number], self.bases[number + 1]
            # In place, as a broker appends: what is linked already must not be touched by it.
            with (self.folder / log_name(base)).open("ab") as log:
                log.write((self.source / log_name(base)).read_bytes()[log.tell() :])
            for name in (*(log_name(base).replace(LOG_SUFFIX, suffix) for suffix in SIDE), snapshot_name(after)):
                if (self.source / name).exists():
                    shutil.copy(self.source / name, self.folder)
        self.written = sealed
        active = log_name(self.bases[sealed])
        data = (self.source / active).read_bytes()
        (self.folder / active).write_bytes(data[: len(data) // 2])
        if mark:
            self.mark({self.tp: self.bases[sealed]})
        return self.bases[sealed]

    def elect(self, other: Path, cut: int, sealed: int, *, rewritten: bool = True) -> int:
        """A leader of epochs 3 and 4 has ``other`` instead from the segment ``cut`` on. That one is cut in place, what
        comes after it goes; then (``rewritten``) it all comes from that leader. Returns where the active one begins.
        """
        with (self.folder / log_name(self.bases[cut])).open("r+b") as log:
            log.truncate(max(batch_starts(log.read())[:2], default=0))  # behind its first batch
        for number in range(cut + 1, self.written + 1):
            for path in self.folder.glob(f"{self.bases[number]:020d}.*"):
                path.unlink()
        (self.folder / log_name(self.bases[cut])).with_suffix(".index").write_bytes(b"")
        if not rewritten:
            return self.bases[cut]
        end = self.bases[sealed]
        for number in range(cut, sealed + 1):
            name = log_name(self.bases[number])
            data = bytearray((other / partition_dir(self.tp) / name).read_bytes())
            for at in batch_starts(bytes(data)):
                data[at + 12 : at + 16] = (4 if number >= sealed - 1 else 3).to_bytes(4, "big")
            with (self.folder / name).open("r+b" if number == cut else "wb") as log:
                log.write(data[: len(data) // (2 if number == sealed else 1)])
        for path in (other / partition_dir(self.tp)).glob("*.snapshot"):
            if self.bases[cut] < int(path.stem) <= end:
                shutil.copy(path, self.folder)
        self.lead({0: 0, 3: self.bases[cut], 4: self.bases[sealed - 1]})
        self.written = sealed
        self.mark({self.tp: end})
        return end

    def lead(self, epochs: dict[int, int]) -> None:
        """Leader epochs and where they begin."""
        text = encode_epochs(EpochEntry(*each) for each in epochs.items())
        (self.folder / "leader-epoch-checkpoint").write_text(text)

    def mark(self, offsets: dict[TopicPartition, int], recovery: dict[TopicPartition, int] | None = None) -> None:
        """The checkpoints of high watermarks and, the same if not told, recovery points."""
        OffsetsFile(self.path, REPLICATION_NAME, FILES).write(offsets)
        OffsetsFile(self.path, RECOVERY_POINT_NAME, FILES).write(offsets if recovery is None else recovery)

    def clean(self, tps: Iterable[TopicPartition]) -> None:
        """The broker's cleaner went over these."""
        OffsetsFile(self.path, CLEANER_NAME, FILES).write(dict.fromkeys(tps, 1))

    def delete_records(self, offset: int) -> None:
        """Its log starts there from now on; files go later."""
        OffsetsFile(self.path, LOG_START_NAME, FILES).write({self.tp: offset})

    def merge(self, first: int, end: int, dropped: int) -> dict[int, bytes | None]:
        """The cleaner made one segment of those from ``first`` to before ``end``; what ``dropped`` held is gone.

        Returns the values that are gone by offset.
        """
        data, gone = b"", range(self.bases[dropped], self.bases[dropped + 1])
        for number in range(first, end):
            path = self.folder / log_name(self.bases[number])
            data += b"" if number == dropped else path.read_bytes()
            for old in self.folder.glob(f"{self.bases[number]:020d}.*"):
                if number == first or old.suffix != ".snapshot":
                    old.rename(old.with_name(f"{old.name}.deleted"))
        (self.folder / log_name(self.bases[first])).write_bytes(data)
        return {at: value for at, value in values(self.source.parent, self.tp.topic).items() if at in gone}

    def retain(self, first: int, *, at_once: bool = True) -> None:
        """Deletes the segments before ``first``: renamed, and a minute later gone."""
        for number in range(self.first, first):
            for path in self.folder.glob(f"{self.bases[number]:020d}.*"):
                gone = path.rename(path.with_name(path.name + ".deleted"))
                if at_once:
                    gone.unlink()
        self.first = first

    def contents(self) -> dict[str, tuple[bytes, int]]:
        """Every file's bytes and time of change."""
        found = (path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def sidecar(broker: Path, url: str, *, mirror: Path | None = None, **settings: object) -> Exit:
    """``tiered-uploader sync --no-wait --sidecar``."""
    found = Settings(http=None, sidecar=broker, **settings)  # type: ignore[arg-type]  # per test
    place = ServicePlace(mirror or broker.with_name(f"{broker.name}-tiered"), StoreLocation.parse(url))
    return asyncio.run(Service(place, found).run(oneshot=DrainMode.SEALED))


def read(url: str, topic: str, partition: int = 0, isolation: str = "read_uncommitted") -> dict[int, bytes | None]:
    """Values by offset, from the bucket alone."""
    with tiered.open_reader(url) as reader:
        found = reader.topic(topic).read(partition=partition, isolation=isolation)
        return {record.offset: record.value for record in found}


def batch_starts(data: bytes) -> list[int]:
    """Where each batch begins."""
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
    return found


def finished_log(path: Path, *, records: int = 60, filler: bytes = b"x") -> Path:
    """A log of small segments with transactions, committed and aborted, and who wrote them."""
    with tiered.open(path) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 1500, "index.interval.bytes": 200})
        for number in range(0, records, 5):
            topic.append_many([b"%03d" % (number + each) + filler * 60 for each in range(5)])
            with topic.transaction("billing") as txn:
                txn.append(b"%03d in a transaction" % number)
                if number % 2:
                    txn.abort()
    return path


def values(
    directory: Path, topic: str, partition: int = 0, isolation: str = "read_uncommitted"
) -> dict[int, bytes | None]:
    """Values by offset, of a log directory."""
    with tiered.open_reader(log_dir=directory) as reader:
        found = reader.topic(topic).read(partition=partition, isolation=isolation)
        return {record.offset: record.value for record in found}


def mirror_of(broker: Broker, files: Files | None = None, **more: Any) -> Mirror:
    """What links beside ``broker``, made; ``more``: its settings."""
    settings = {"compacted": (), "held_bytes": HELD_BYTES, **more}
    mirror = Mirror(broker.path, beside(broker.path), files or PosixFiles(), **settings)
    mirror.make(SystemIds())
    return mirror
