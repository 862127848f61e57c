"""Files of a partition's directory: segments and producer snapshots by their names, markers, leader epochs.

A file ``{offset}.snapshot`` holds the state of the producers below that offset; ``format.producer_snapshot`` decodes
it. ``leader-epoch-checkpoint`` holds the leader epochs with their first offsets, Kafka's file and rules.

Kafka's rules: docs/kafka-semantics.md#producer-snapshots and #leader-epochs.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tiered.errors import ConfigError, CorruptionError, NotFoundError, UnknownTopicError
from tiered.format.checkpoint import decode_epochs, encode_epochs
from tiered.format.local_names import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    LocalFile,
    parse_local_name,
    partition_dir,
    snapshot_name,
)
from tiered.format.producer_snapshot import SNAPSHOT_HEADER_BYTES, decode_snapshot
from tiered.local.disk.files import Files
from tiered.model import EpochEntry, TopicPartition
from tiered.plan.producer_state import ProducerSnapshot

LOGGER = logging.getLogger("tiered.local")

PLAIN_NAME = "tiered-plain"
"""Empty file in a partition whose snapshots are all empty: no producer ever wrote."""

SPARSE_NAME = "tiered-sparse"
"""Empty file in a partition that has offsets without records for a good reason. A missing record is then no damage."""

EPOCHS_NAME = "leader-epoch-checkpoint"


def local_files(files: Files, directory: Path) -> list[LocalFile]:
    """Return the files of segments and snapshots in a partition's directory, sorted by name. Ignore all others."""
    return [parsed for name in files.names(directory) if (parsed := parse_local_name(name)) is not None]


def bases_of(found: list[LocalFile], suffix: str = LOG_SUFFIX) -> list[int]:
    """Return the base offsets of the files in ``found`` that have this suffix, ascending.

    Files ending in ``.cleaned``, ``.swap`` and ``.deleted`` are skipped.
    """
    return sorted(file.base for file in found if file.suffix == suffix and not file.work)


def has_lost_logs(files: Files, directory: Path, start: int, end: int) -> bool:
    """Return True if ``directory`` has no ``.log`` file, although it held the records from ``start`` to ``end``.

    ``start``, ``end`` (exclusive): those in the checkpoints. A file that is being replaced or deleted counts. Return
    False for a directory that is gone by now.
    """
    try:
        return end > max(start, 0) and not any(LOG_SUFFIX in name for name in files.names(directory))
    except NotFoundError:
        return False


def no_partition(directory: Path, tp: TopicPartition) -> UnknownTopicError:
    """Return the error of a partition that ``directory`` does not contain."""
    return UnknownTopicError(
        f"{directory} holds no partition {tp}",
        hint="name the log directory that has it; `tiered status` lists the partitions of one",
    )


def gone_error(directory: Path, tp: TopicPartition, end_offset: int, *, tiered: bool = False) -> CorruptionError:
    """Return the error of a partition whose files are lost. ``end_offset``: its end by the checkpoints.

    ``tiered``: True if a bucket may have its records.
    """
    path = directory / partition_dir(tp)
    return CorruptionError(
        f"{tp} is out of service: its directory {path} is gone or has no .log file; it held records up to offset "
        f"{end_offset}",
        path_or_key=str(path),
        offset=end_offset,
        hint=f"put the directory back and open the log again; {_way_on(directory, tp, end_offset, tiered=tiered)}",
    )


def gone_text(directory: Path, tp: TopicPartition, end_offset: int, *, tiered: bool) -> str:
    """Return the text of a finding about a partition whose files are lost, for ``check`` and ``status``.

    ``end_offset``: its end by the checkpoints. ``tiered``: True if a bucket may have its records.
    """
    return (
        f"it held records up to offset {end_offset}: put the directory back and open the log again; "
        f"{_way_on(directory, tp, end_offset, tiered=tiered)}"
    )


def _way_on(directory: Path, tp: TopicPartition, end_offset: int, *, tiered: bool) -> str:
    command = f"tiered repair {tp.topic}:{tp.partition} --log-dir {directory}"
    if tiered:
        return f"`{command}` shows what is lost, and continues at the end of the bucket"
    return f"`{command} --accept-loss` gives the records up, and continues at offset {end_offset}"


def log_bases(files: Files, directory: Path) -> list[int]:
    """Return the base offsets of a partition's segments, ascending."""
    return bases_of(local_files(files, directory))


def snapshot_offsets(files: Files, directory: Path) -> list[int]:
    """Return the offsets of a partition's producer snapshots, ascending."""
    return bases_of(local_files(files, directory), SNAPSHOT_SUFFIX)


def may_have_producers(files: Files, directory: Path) -> bool:
    """Return True if producers may have written to the partition, by its snapshots.

    Without the file ``tiered-plain`` any snapshot counts. With it, only a snapshot with entries counts.
    """
    offsets = snapshot_offsets(files, directory)
    if files.state(directory / PLAIN_NAME) is None:
        return bool(offsets)
    states = [files.state(directory / snapshot_name(offset)) for offset in offsets]
    return any(state is not None and state.size > SNAPSHOT_HEADER_BYTES for state in states)


def lacks_producer_files(files: Files, directory: Path) -> bool:
    """Return True if neither snapshots nor ``tiered-plain`` exist. Recovery must then read the log for producers."""
    return files.state(directory / PLAIN_NAME) is None and not snapshot_offsets(files, directory)


def newest_snapshot(files: Files, directory: Path, least: int, greatest: int) -> ProducerSnapshot | None:
    """Return the newest readable snapshot whose offset is from ``least`` to ``greatest`` (inclusive), None without one.

    An unreadable snapshot is logged and skipped.
    """
    for offset in reversed(snapshot_offsets(files, directory)):
        if least <= offset <= greatest:
            try:
                return ProducerSnapshot(offset, tuple(decode_snapshot(files.read(directory / snapshot_name(offset)))))
            except (CorruptionError, NotFoundError) as error:
                LOGGER.warning("snapshot_passed_over offset=%d directory=%s error=%s", offset, directory, error)
    return None


def remove_snapshots_above(files: Files, directory: Path, end_offset: int) -> list[int]:
    """Remove the producer snapshots above ``end_offset``, where the log was truncated. Return their offsets."""
    gone = [offset for offset in snapshot_offsets(files, directory) if offset > end_offset]
    for offset in gone:
        files.unlink(directory / snapshot_name(offset))
    return gone


class LeaderEpochs:
    """Leader epochs of a partition, ascending, each with its first offset (``leader-epoch-checkpoint``).

    Every change is durable when the call returns. ``read_only``: changes stay in memory.
    """

    def __init__(self, directory: Path, files: Files, *, read_only: bool = False) -> None:
        self.path = directory / EPOCHS_NAME
        self._files = files
        self._read_only = read_only
        self.entries: tuple[EpochEntry, ...] = ()
        self.damaged = False
        self.reload()

    @property
    def latest(self) -> int:
        """Return the newest epoch, -1 if there is none."""
        return self.entries[-1].epoch if self.entries else -1

    def reload(self) -> None:
        """Read the file again. A missing or damaged file gives no epochs; recovery then takes them from the batches."""
        try:
            self.entries = tuple(decode_epochs(self._files.read(self.path).decode()))
        except NotFoundError:
            self.entries = ()
        except (CorruptionError, UnicodeDecodeError) as error:
            LOGGER.warning("checkpoint_damaged path=%s error=%s", self.path, error)
            self.entries, self.damaged = (), True

    def assign(self, epoch: int, start_offset: int) -> None:
        """Begin ``epoch`` at ``start_offset``. Entries with an equal or later offset or epoch are dropped.

        If ``epoch`` is the newest already and began at or before ``start_offset``, nothing changes.
        """
        entries = assigned(self.entries, epoch, start_offset)
        if entries != self.entries:
            self._store(entries)

    def truncate_from_end(self, offset: int) -> None:
        """Remove the epochs that begin at or above ``offset``."""
        self._store(tuple(entry for entry in self.entries if entry.start_offset < offset))

    def truncate_from_start(self, offset: int) -> None:
        """Set the start of the epoch that covers ``offset`` to ``offset``, and remove all earlier epochs."""
        older = [entry for entry in self.entries if entry.start_offset <= offset]
        if older:
            newer = self.entries[len(older) :]
            self._store((EpochEntry(older[-1].epoch, offset), *newer))

    def clear(self) -> None:
        """Remove all epochs."""
        self._store(())

    def below(self, end_offset: int) -> tuple[EpochEntry, ...]:
        """Return the epochs that begin below ``end_offset``. They are uploaded with a segment that ends there."""
        return tuple([entry for entry in self.entries if entry.start_offset < end_offset])

    def restore(self, entries: tuple[EpochEntry, ...]) -> None:
        """Replace the epochs by ``entries``, an earlier state, to undo a change.

        If the last write failed, the file is written again even if ``entries`` are the current ones.
        """
        self._store(entries)

    def _store(self, entries: tuple[EpochEntry, ...]) -> None:
        if not self._read_only and (entries != self.entries or self.damaged):
            self.damaged = True  # until it is written: after a failure the content is unknown
            self._files.replace(self.path, encode_epochs(entries).encode())
        self.entries, self.damaged = entries, False


def assigned(entries: tuple[EpochEntry, ...], epoch: int, start_offset: int) -> tuple[EpochEntry, ...]:
    """Return ``entries`` with ``epoch`` begun at ``start_offset``.

    Entries with an equal or later offset or epoch are dropped. If ``epoch`` is the newest already and began at or
    before ``start_offset``, return ``entries`` unchanged. Raises ConfigError for a negative epoch or offset.
    """
    if epoch < 0 or start_offset < 0:
        raise ConfigError(
            f"leader epoch {epoch} at offset {start_offset} is not possible: one of them is negative",
            hint="pass an epoch and an offset of at least 0",
        )
    if entries and entries[-1].epoch == epoch and start_offset >= entries[-1].start_offset:
        return entries
    kept = list(entries)
    while kept and (kept[-1].epoch >= epoch or kept[-1].start_offset >= start_offset):
        kept.pop()
    return (*kept, EpochEntry(epoch, start_offset))
