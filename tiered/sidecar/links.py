"""Private folder of one partition in a sidecar's directory: links to the broker's segments, and small files.

``tiered-links`` lists where links begin, in the format of Kafka's checkpoints, so that a missing link is found::

    0            version
    3            lines that follow
    0            a link begins at this offset
    4711         the next one; the one before it ends here
    9000         where the links end

An offset is listed before its link is made, and removed before the link is deleted. A kill in between leaves an
offset at or above the end of the links, or a link that is not listed. Neither counts as missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tiered.errors import (
    CorruptionError,
    DataLocalError,
    LocalIOError,
    LocalPermissionError,
    NewerFormatError,
    NotFoundError,
    OffsetGapError,
)
from tiered.format.batch_scanner import Offsets
from tiered.format.local_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    local_name,
    log_name,
    partition_dir,
    snapshot_name,
)
from tiered.local.disk.files import Files, SmallFile
from tiered.local.disk.partition_files import EPOCHS_NAME, local_files, log_bases, snapshot_offsets
from tiered.local.disk.topics import PARTITION_METADATA_NAME
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.segment.scan import LogFile
from tiered.local.segment.side_files import snapshot_after
from tiered.model import TopicPartition
from tiered.plan.lineage import rewritten
from tiered.plan.side_files import NO_PRODUCERS

COPIED_BYTES = 4 * 1024**2
"""Bytes read and written at once where a segment of the broker is copied in part."""

LINKS_NAME = "tiered-links"
VERSION = 0
LINKING_NAME = "tiered-linking"
BEGUN_NAME = "tiered-begun"
"""Empty file in a partition for which this directory has had a granted claim."""
STARTS_IN_NAME = "tiered-starts-in"
"""File with the base of the segment in which the broker's log started when it was first linked. A new bucket begins
there.
"""
TAKEN_BACK_NAME = "tiered-taken-back"
"""File with the lowest offset of links that were removed because the broker truncated its log."""
DELETED = ".deleted"
"""Suffix that the broker appends to the name of a file a minute before it removes it."""


class Lost(NamedTuple):
    """Segment whose link is missing: offsets ``base`` to ``after`` (exclusive)."""

    base: int
    after: int


class LinkedPart(NamedTuple):
    """Part of the broker's segment ``base``, to be linked as the segment ``start`` to ``after`` (exclusive).

    The part begins at byte ``position`` of the file. Above 0 it is copied, not linked.
    """

    base: int
    start: int
    after: int
    position: int


def read_or_empty(files: Files, path: Path) -> bytes:
    """Return the bytes of a small file, ``b""`` if it is absent."""
    try:
        return files.read(path)
    except NotFoundError:
        return b""


class LinkFolder:
    """Private folder of partition ``tp`` in the sidecar's directory ``path``, with links to files of ``broker``.

    Use it from one thread at a time.
    """

    def __init__(self, tp: TopicPartition, broker: Path, path: Path, files: Files) -> None:
        self.tp = tp
        self.broker = broker
        self.theirs, self.ours = broker / partition_dir(tp), path / partition_dir(tp)
        self._files = files
        note = self.ours / LINKS_NAME
        self._note: SmallFile[tuple[int, ...]] = SmallFile(note, files, partial(_decode_of, note))

    # ------------------------------------------------------------------ where links begin and end

    def bases(self) -> list[int]:
        """Return the bases of the existing ``.log`` files, ascending; ``[]`` without a folder.

        The last file is empty and marks the end of the links.
        """
        return log_bases(self._files, self.ours) if self._files.is_directory(self.ours) else []

    def noted(self) -> tuple[int, ...]:
        """Return the offsets in ``tiered-links``: starts of links, ascending, and the end of the last one.

        ``()`` without the file. Raises CorruptionError for a damaged file, NewerFormatError for one of a newer release.
        """
        return self._note.load() or ()

    def note(self, offsets: Sequence[int]) -> None:
        """Store ``offsets``, the starts of links and the end of the last one, in ``tiered-links``, durably."""
        if list(self.noted()) != list(offsets):
            self._note.store(encode(offsets), tuple(offsets))

    def offsets(self, linked: Sequence[int]) -> list[int]:
        """Return the offsets at which links begin, missing links included. The last offset is the end of the links.

        ``linked``: bases of the existing files, as :meth:`bases` returns them.
        """
        return sorted({*linked, *(offset for offset in self.noted() if linked and offset < linked[-1])})

    def there(self, linked: Sequence[int]) -> list[tuple[int, int]]:
        """Return (base, end) of each existing link. A link ends where the next one begins.

        The next one may be a missing link: ``tiered-links`` has its offset. ``linked``: bases of the existing files,
        as :meth:`bases` returns them. The last of these files marks the end, and is no link.
        """
        there = frozenset(linked)
        return [pair for pair in itertools.pairwise(self.offsets(linked)) if pair[0] in there]

    def lost(self, linked: Sequence[int], committed: int) -> list[Lost]:
        """Return the missing links with offsets at or above ``committed``, the end of the bucket.

        ``linked``: bases of the existing files, as :meth:`bases` returns them.
        """
        there = frozenset(linked)
        pairs = itertools.pairwise(self.offsets(linked))
        return [Lost(base, after) for base, after in pairs if base not in there and after > committed]

    def end(self) -> int | None:
        """Return the offset at which the links end, or the first one will begin; None before :meth:`adopt`.

        Remove an empty file that a killed process left above this offset. A link to a file that the broker truncated to
        nothing still counts as a link.
        """
        bases = self.bases()
        while len(bases) > 1 and not self._size(bases[-2]) and not self._is_the_brokers(bases[-2]):
            self._files.unlink(self.ours / log_name(bases.pop()))
        return bases[-1] if bases else None

    def is_another_copy(self) -> bool:
        """Return True if none of the links is to a current file of the broker, because it fetches its replica again."""
        return not any(self._is_the_brokers(base) for base in self.bases())

    def _is_the_brokers(self, base: int) -> bool:
        ours, theirs = (self._files.state(folder / log_name(base)) for folder in (self.ours, self.theirs))
        return ours is not None and theirs is not None and ours.inode == theirs.inode

    def _size(self, base: int) -> int:
        state = self._files.state(self.ours / log_name(base))
        return 0 if state is None else state.size

    def _place(self, end: int) -> None:
        """Write the empty file that marks the end of the links."""
        self._files.close(self._files.open_write(self.ours / log_name(end)))

    # ------------------------------------------------------------------ the claim

    @property
    def begun(self) -> bool:
        """Return True if this directory has ever had a granted claim of the partition."""
        return self._files.state(self.ours / BEGUN_NAME) is not None

    def start(self, linked: int) -> int:
        """Return the offset at which the log begins in a new bucket.

        ``linked``: base of the first link, returned if no other offset is stored.
        """
        noted = self.read(STARTS_IN_NAME)
        return int(noted) if noted else linked

    def start_log(self, at: int, *, resumes: bool, producers: bytes = b"") -> None:
        """Prepare the links after a granted claim. ``at``: exclusive end of the partition in the bucket.

        ``resumes``: this log has no records yet, and must begin at ``at``. Then, or at the first claim, links below
        ``at`` are deleted, and all links if none begins at ``at``. ``producers``: producer state at ``at``. With
        ``resumes`` it is stored unless the broker has a snapshot of it. Raises OffsetGapError if the broker truncated
        records that the bucket has.
        """
        taken_back = self.read(TAKEN_BACK_NAME)
        if taken_back and int(taken_back) < at:
            raise rewritten(str(self.tp), int(taken_back), at)
        if taken_back:
            self._files.unlink(self.ours / TAKEN_BACK_NAME)
        bases = self.bases()
        if resumes or (at > bases[0] and not self.begun):
            kept = self.offsets(bases) if at in bases else []
            self.note([base for base in kept if base >= at] or [at])
            for base in reversed([base for base in bases if base < at or at not in bases]):
                self._files.unlink(self.ours / log_name(base))
            self._place(at)
        if resumes and self._files.state(self.ours / snapshot_name(at)) is None:
            self._files.replace(self.ours / snapshot_name(at), producers or NO_PRODUCERS)
        self._files.replace(self.ours / BEGUN_NAME, b"")

    # ------------------------------------------------------------------ links are made

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file of this folder, ``b""`` if it is absent."""
        return read_or_empty(self._files, self.ours / name)

    def adopt(self, base: int, epochs: bytes, *, starts_in: int) -> None:
        """Create the folder without links. The first link will begin at ``base``.

        ``epochs``: the broker's leader epoch file. ``starts_in``: offset at which the log begins in a new bucket.
        """
        self._files.make_directory(self.ours)
        self.copy_small_files(epochs)
        self._files.replace(self.ours / STARTS_IN_NAME, b"%d" % starts_in)
        self.note([base])
        self._place(base)

    def copy_small_files(self, epochs: bytes) -> None:
        """Copy the file with the topic's id, and ``epochs``, the broker's leader epoch file as read before linking."""
        metadata = read_or_empty(self._files, self.theirs / PARTITION_METADATA_NAME)
        for name, data in ((PARTITION_METADATA_NAME, metadata), (EPOCHS_NAME, epochs)):
            if data and self.read(name) != data:
                self._files.replace(self.ours / name, data)

    def link(self, part: LinkedPart, *, may_have_gaps: bool) -> None:
        """Link ``part`` of the broker's log, or copy it, with its side files. The ``.log`` becomes visible last.

        ``may_have_gaps``: the topic is compacted. Raises OffsetGapError if the broker has rewritten the segment,
        CorruptionError for a damaged one, DataLocalError if it was replaced meanwhile.
        """
        files, linking, theirs = self._files, self.ours / LINKING_NAME, self.theirs / log_name(part.base)
        files.unlink(linking)
        if part.position:
            self._copy_log(theirs, linking, part.position)
        else:
            self._link_file(log_name(part.base), linking)
        try:
            self._need_whole(linking, part.start, part.after, may_have_gaps=may_have_gaps)
        except CorruptionError as damage:
            raise _damaged(damage, linking, theirs) from damage
        for name in (*(local_name(part.start, suffix) for suffix in INDEX_SUFFIXES), snapshot_name(part.after)):
            files.unlink(self.ours / name)
            if (part.start != part.base or part.position) and name != snapshot_name(part.after):
                continue  # the broker's index counts from another base, or of more
            try:
                self._link_file(name, self.ours / name)
            except NotFoundError:
                continue  # an index is rebuilt from the log; of transactions and producers there may be none
        now, linked = files.state(theirs), files.state(linking)
        if not part.position and now is not None and linked is not None and now.inode != linked.inode:
            raise exchanging(self.tp)  # its indexes may be those of the other file
        noted = self.offsets(self.bases())
        self.note([*(base for base in noted if base <= part.start), part.after])
        self._place(part.after)
        files.rename(linking, self.ours / log_name(part.start))
        files.sync_directory(self.ours)

    def _link_file(self, name: str, target: Path) -> None:
        try:
            try:
                self._files.link(self.theirs / name, target)
            except NotFoundError:
                self._files.link(self.theirs / f"{name}{DELETED}", target)
        except LocalIOError as error:
            if isinstance(error, LocalPermissionError):
                error.hint = (
                    "run the sidecar as the broker's user: Linux links files of another user only if they are writable "
                    "(fs.protected_hardlinks)"
                )
            raise

    def _copy_log(self, theirs: Path, linking: Path, position: int) -> None:
        """Copy ``theirs`` from byte ``position`` on to ``linking``. A hard link would contain the whole file."""
        files = self._files
        with LogFile(files, theirs) as log:
            handle = files.open_write(linking)
            try:
                for at in range(position, log.size(), COPIED_BYTES):
                    data = log.read_at(at, min(COPIED_BYTES, log.size() - at))
                    files.write_at(handle, data, at - position)
                files.sync(handle)
            finally:
                files.close(handle)

    def _need_whole(self, linking: Path, base: int, after: int, *, may_have_gaps: bool) -> None:
        """Raise OffsetGapError unless the link reaches from ``base`` to ``after``: the broker may have rewritten it.

        ``may_have_gaps`` (a compacted topic): one record is enough. Raises CorruptionError for a damaged file.
        """
        with LogFile(self._files, linking) as log:
            size, last = log.size(), base - 1
            for span, _ in log.segment(0, size, Offsets(base, after)):
                last = span.last_offset
        if last < base or (last + 1 < after and not may_have_gaps):
            raise OffsetGapError(
                f"{self.tp}: the broker's segment {base} reaches to offset {last + 1}, the next one begins "
                f"at {after}: it was rewritten during the scan",
                start=last + 1,
                end=after,
                hint="wait for the next scan; if the error stays, the topic was truncated, or it was compacted: then "
                "name it with --sidecar-compacted",
            )

    # ------------------------------------------------------------------ links are removed

    def withdraw(self, base: int) -> None:
        """Remove the link at ``base`` and all later links: the broker has truncated these records.

        The offset is stored first, so that the next claim can compare it with the bucket.
        """
        before, starts_in = self.read(TAKEN_BACK_NAME), self.read(STARTS_IN_NAME)
        self._files.replace(self.ours / TAKEN_BACK_NAME, b"%d" % (min(base, int(before)) if before else base))
        if starts_in and base < int(starts_in):  # a cut below it takes the log start along
            self._files.replace(self.ours / STARTS_IN_NAME, b"%d" % base)
        self._files.replace(self.ours / log_name(base), b"")
        for file in local_files(self._files, self.ours):
            if file.base > base or (file.base == base and file.suffix not in {LOG_SUFFIX, SNAPSHOT_SUFFIX}):
                self._files.unlink(self.ours / local_name(file.base, file.suffix, file.work))

    def delete_committed(self, committed: int) -> int:
        """Delete the links below offset ``committed`` except the newest. Return the bytes of links above ``committed``.

        The newest one stays to show whose log this is.
        """
        if self.end() is None:
            return 0
        bases = self._mend_end(self.bases())
        done = [base for base, after in itertools.pairwise(bases) if after <= committed]
        first = done[-1] if done else bases[0]
        lost = [base for base, _ in self.lost(bases, committed)]
        self.note([base for base in self.offsets(bases) if base >= min([first, *lost])])
        for base in done[:-1]:
            self._files.unlink(self.ours / log_name(base))
        for file in local_files(self._files, self.ours):
            if file.base < first:
                self._files.unlink(self.ours / local_name(file.base, file.suffix, file.work))
        return sum(self._size(base) for base in bases if base >= first and base not in done)

    def _mend_end(self, bases: list[int]) -> list[int]:
        """Return ``bases``. If the empty file that marks the end was removed, write it again and add its base."""
        noted = self.noted()
        if self._size(bases[-1]) and noted and noted[-1] > bases[-1]:
            self._place(noted[-1])
            return [*bases, noted[-1]]
        return bases

    def derive_snapshots(self, upload: PartitionUpload | None) -> None:
        """Write a producer snapshot at the end of each link if the broker (before 2.8) has none there.

        ``upload``: the partition's entry in the upload checkpoint, None without one.
        """
        bases, there = self.bases(), set(snapshot_offsets(self._files, self.ours))
        first = self.offsets(bases)[:1]
        if not (there and upload and upload.reaches_below(min(first, default=0))):
            there.update(first)  # the log begins there: no producer is before it
        for base, after in self.there(bases):
            if after in there or base not in there:  # beyond a lost link producers may be missing
                continue
            try:
                self._files.replace(
                    self.ours / snapshot_name(after), snapshot_after(self._files, self.ours, base, bases)
                )
            except CorruptionError:
                return  # the upload of that link names the damage
            there.add(after)


def exchanging(tp: TopicPartition) -> DataLocalError:
    """Return the error for a partition whose segments the broker replaces at this moment."""
    return DataLocalError(
        f"{tp}: nothing is linked while the broker replaces segments",
        hint="wait: the next scan tries again; if the broker crashed, start it, which completes the replacement",
    )


def _damaged(damage: CorruptionError, linking: Path, theirs: Path) -> CorruptionError:
    """Return the error with the path of the broker's file in place of the link's temporary name."""
    return CorruptionError(
        damage.message.replace(str(linking), str(theirs)),
        path_or_key=str(theirs),
        position=damage.position,
        offset=damage.offset,
        hint="let the broker fetch the segment from another replica, or run the sidecar beside that replica; no later "
        "segment is linked until then",
    )


def encode(offsets: Sequence[int]) -> bytes:
    """Return the content of ``tiered-links`` for these offsets."""
    return "".join(f"{number}\n" for number in (VERSION, len(offsets), *offsets)).encode()


def decode(data: bytes) -> tuple[int, ...]:
    """Return the offsets in ``data``, the content of ``tiered-links``.

    Raises CorruptionError if it is damaged, NewerFormatError if a newer release wrote it.
    """
    lines = data.decode("ascii", "replace").splitlines()
    if not all(line.isdecimal() for line in lines) or len(lines) < 2:
        raise CorruptionError("the content is not a list of offsets", position=0)
    version, count, *offsets = map(int, lines)
    if version != VERSION:
        raise NewerFormatError(f"the file has version {version}, this release reads {VERSION}", position=0)
    if count != len(offsets) or offsets != sorted(set(offsets)):
        raise CorruptionError(
            f"it should have {count} ascending offsets: its {len(offsets)} differ in number or order", position=0
        )
    return tuple(offsets)


def _decode_of(path: Path, data: bytes) -> tuple[int, ...]:
    """Return the offsets in ``data``, the content of the ``tiered-links`` file ``path``.

    Raises CorruptionError if it is damaged, NewerFormatError if a newer release wrote it.
    """
    try:
        return decode(data)
    except NewerFormatError as newer:
        newer.message = f"{path} was written by a newer release: {newer.message}"
        newer.hint = "upgrade tieredlog; nothing of the partition is uploaded meanwhile"
        raise
    except CorruptionError as error:
        raise CorruptionError(
            f"{path} cannot be read: {error.message}",
            path_or_key=str(path),
            hint=f"if no file of {path.parent} was removed by hand, stop the sidecar and remove {path}: it is rebuilt "
            "from the links; nothing of the partition is uploaded without it",
        ) from error
