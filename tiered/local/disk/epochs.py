"""``leader-epoch-checkpoint``: the leader epochs of a partition with their first offsets, Kafka's file and rules.

Kafka's rule: docs/kafka-semantics.md#leader-epochs.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tiered.errors import ConfigError, CorruptionError, NotFoundError
from tiered.format.checkpoint import decode_epochs, encode_epochs
from tiered.local.disk.files import Files
from tiered.model import EpochEntry

LOGGER = logging.getLogger("tiered.local")

EPOCHS_NAME = "leader-epoch-checkpoint"


class LeaderEpochs:
    """The ascending list of (epoch, first offset); every assignment is on disk before it returns."""

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
        """Read the file again. A damaged one counts as empty: recovery learns the epochs from the batches."""
        try:
            self.entries = tuple(decode_epochs(self._files.read(self.path).decode()))
        except NotFoundError:
            self.entries = ()
        except (CorruptionError, UnicodeDecodeError) as error:
            LOGGER.warning("checkpoint_damaged path=%s error=%s", self.path, error)
            self.entries, self.damaged = (), True

    def assign(self, epoch: int, start_offset: int) -> None:
        """Begin ``epoch`` at ``start_offset``; drop later or equal entries. Do nothing if it is already current."""
        entries = assigned(self.entries, epoch, start_offset)
        if entries != self.entries:
            self._store(entries)

    def truncate_from_end(self, offset: int) -> None:
        """Forget epochs that begin at or above ``offset``."""
        self._store(tuple(entry for entry in self.entries if entry.start_offset < offset))

    def truncate_from_start(self, offset: int) -> None:
        """Begin the epoch that covers ``offset`` there; drop older ones."""
        older = [entry for entry in self.entries if entry.start_offset <= offset]
        if older:
            newer = self.entries[len(older) :]
            self._store((EpochEntry(older[-1].epoch, offset), *newer))

    def clear(self) -> None:
        """Forget all epochs."""
        self._store(())

    def below(self, end_offset: int) -> tuple[EpochEntry, ...]:
        """Return the epochs of the offsets below ``end_offset``, which travel with a segment."""
        return tuple([entry for entry in self.entries if entry.start_offset < end_offset])

    def restore(self, entries: tuple[EpochEntry, ...]) -> None:
        """Go back to ``entries``; write the file again if an earlier write may have failed halfway."""
        self._store(entries)

    def _store(self, entries: tuple[EpochEntry, ...]) -> None:
        if not self._read_only and (entries != self.entries or self.damaged):
            self.damaged = True  # until it is written: after a failure the content is unknown
            self._files.replace(self.path, encode_epochs(entries).encode())
        self.entries, self.damaged = entries, False


def assigned(entries: tuple[EpochEntry, ...], epoch: int, start_offset: int) -> tuple[EpochEntry, ...]:
    """Return ``entries`` after ``epoch`` was seen at ``start_offset`` (Kafka's ``assign``)."""
    if epoch < 0 or start_offset < 0:
        raise ConfigError(f"leader epoch {epoch} at offset {start_offset} cannot be")
    if entries and entries[-1].epoch == epoch and start_offset >= entries[-1].start_offset:
        return entries
    kept = list(entries)
    while kept and (kept[-1].epoch >= epoch or kept[-1].start_offset >= start_offset):
        kept.pop()
    return (*kept, EpochEntry(epoch, start_offset))
