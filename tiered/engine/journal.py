"""``tiered-uploader.journal``: object names of uploads, fsynced before the first byte is sent.

Each line is one JSON object. Lines are only appended, so that a crash tears at most the last one::

    {"op":"put","topic":"t","partition":0,"epoch":7,"base":42,"log":"<key>","idx":"<key>"}   before the first byte
    {"op":"part","log":"<key>","upload_id":"<id>"}                                          before the first part
    {"op":"done","log":"<key>"}                                                             committed, or deleted

An unreadable line is skipped: at worst an orphan stays, which garbage collection finds later. A file that has grown is
rewritten without finished uploads. Only the holder of ``tiered-uploader.lock`` may open it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tiered.errors import ClosedError, NotFoundError
from tiered.format.kernels import PlainLock
from tiered.format.local_names import LOG_SUFFIX
from tiered.local.disk.files import Files
from tiered.local.disk.uploader_files import JOURNAL_NAME
from tiered.model import TopicPartition

COMPACT_LINES = 1_000
"""Lines above which the file is rewritten, if at least three quarters of them are of finished uploads."""

UID_CHARS = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """One upload in the journal. ``upload_ids``: its multipart uploads, one per attempt; empty for a plain PUT."""

    tp: TopicPartition
    epoch: int
    base: int
    log_key: str
    idx_key: str
    upload_ids: tuple[str, ...] = ()

    @property
    def uid(self) -> str:
        """Return the unique part that both object names share."""
        return self.log_key.removesuffix(LOG_SUFFIX)[-UID_CHARS:]

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON objects of the journal's lines for this upload."""
        put: dict[str, Any] = {
            "op": "put",
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "epoch": self.epoch,
            "base": self.base,
            "log": self.log_key,
            "idx": self.idx_key,
        }
        return [put, *map(partial(_part, self.log_key), self.upload_ids)]

    def with_part(self, upload_id: str) -> Entry:
        """Return a copy of the entry with one more multipart upload."""
        return replace(self, upload_ids=(*self.upload_ids, upload_id))


class Journal:
    """Open journal of unfinished uploads. Thread-safe. Every :meth:`put` and :meth:`part` is durable on return."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._path = directory / JOURNAL_NAME
        self._files = files
        self._lock = PlainLock()
        self._entries: dict[str, Entry] = {}
        self._by_partition: dict[TopicPartition, dict[str, Entry]] = {}
        self._lines = self._end = self._inode = 0
        self.skipped_lines = 0
        self._handle: int | None = None
        self._closed = False
        self._open()

    def _open(self) -> None:
        self._entries, self._by_partition = {}, {}
        self._lines = self._end = 0
        self._read()
        self._handle = self._files.open_write(self._path)
        self._files.truncate(self._handle, self._end)
        self._files.sync_directory(self._path.parent)
        self._note_inode()

    def _note_inode(self) -> None:
        state = self._files.state(self._path)
        self._inode = state.inode if state is not None else 0

    def refresh(self) -> None:
        """Read the file again if another process has changed it. Call it after the uploader's lock was taken again."""
        with self._lock:
            state = self._files.state(self._path)
            self._need_open()
            if state is not None and (state.size, state.inode) == (self._end, self._inode):
                return
            self._close_handle()
            self._open()

    def put(self, entry: Entry) -> None:
        """Write the names of an upload, durably, before its first byte is sent."""
        with self._lock:
            self._need_open()
            self._append(entry.lines(), sync=True)
            self._put(entry)

    def part(self, log_key: str, upload_id: str) -> None:
        """Write the id of a multipart upload, durably, before its first part is sent.

        ``log_key``: key of an upload that :meth:`put` has written.
        """
        with self._lock:
            self._need_open()
            self._append([_part(log_key, upload_id)], sync=True)
            self._put(self._entries[log_key].with_part(upload_id))

    def done(self, log_keys: Iterable[str]) -> None:
        """Mark uploads as finished: committed or deleted. Unknown keys are ignored.

        The lines are not fsynced: if one is lost, the next start checks its upload again.
        """
        with self._lock:
            if known := [key for key in log_keys if key in self._entries]:
                self._need_open()
                self._append([{"op": "done", "log": key} for key in known if self._drop(key)], sync=False)
            if self._lines > COMPACT_LINES and self._lines > 4 * len(self._entries):
                self._compact()

    def before(self, tp: TopicPartition, epoch: int) -> list[Entry]:
        """Return the unfinished uploads of ``tp`` under claim epochs below ``epoch``, sorted by base offset."""
        with self._lock:
            entries = self._by_partition.get(tp, {}).values()
            found = [entry for entry in entries if entry.epoch < epoch]
        return sorted(found, key=lambda entry: entry.base)

    def between(self, tp: TopicPartition, start_offset: int, end_offset: int) -> list[Entry]:
        """Return the unfinished uploads of ``tp`` with ``start_offset`` <= base offset < ``end_offset``."""
        with self._lock:
            entries = self._by_partition.get(tp, {}).values()
            return [entry for entry in entries if start_offset <= entry.base < end_offset]

    def close(self) -> None:
        """Close the file. Unfinished uploads stay in it for the next start."""
        with self._lock:
            self._closed = True
            self._close_handle()

    def _close_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._files.close(handle)

    def _need_open(self) -> None:
        """Open the file if an earlier attempt failed, for want of file handles. Raises ClosedError after a close."""
        if self._closed:
            raise ClosedError(f"the upload journal {self._path} is closed")
        if self._handle is None:
            self._open()

    def _put(self, entry: Entry) -> None:
        self._entries[entry.log_key] = entry
        self._by_partition.setdefault(entry.tp, {})[entry.log_key] = entry

    def _drop(self, log_key: str) -> bool:
        entry = self._entries.pop(log_key, None)
        if entry is None:
            return False
        rest = self._by_partition[entry.tp]
        del rest[log_key]
        if not rest:
            del self._by_partition[entry.tp]
        return True

    def _append(self, lines: list[dict[str, Any]], *, sync: bool) -> None:
        if self._handle is None:
            raise ClosedError(f"the upload journal {self._path} is closed")
        data = b"".join([json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines])
        self._files.write_at(self._handle, data, self._end)
        if sync:
            self._files.sync(self._handle)
        self._end += len(data)
        self._lines += len(lines)

    def _read(self) -> None:
        try:
            data = self._files.read(self._path)
        except NotFoundError:
            return
        self._end = data.rfind(b"\n") + 1  # a torn last line is written over
        for line in data[: self._end].splitlines():
            self._lines += 1
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError, TypeError):
                self.skipped_lines += 1

    def _apply(self, line: dict[str, Any]) -> None:
        key = str(line["log"])
        match line["op"]:
            case "put":
                tp = TopicPartition(str(line["topic"]), int(line["partition"]))
                self._put(Entry(tp, int(line["epoch"]), int(line["base"]), key, str(line["idx"])))
            case "part":
                if key in self._entries:
                    self._put(self._entries[key].with_part(str(line["upload_id"])))
            case "done":
                self._drop(key)
            case _:
                raise ValueError("the line has an unknown op")

    def _compact(self) -> None:
        lines = [line for entry in self._entries.values() for line in entry.lines()]
        data = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
        self._files.replace(self._path, data)
        self._close_handle()  # even after an error nothing is written to the old file
        self._handle = self._files.open_write(self._path)
        self._end, self._lines = len(data), len(lines)
        self._note_inode()


def _part(log_key: str, upload_id: str) -> dict[str, Any]:
    return {"op": "part", "log": log_key, "upload_id": upload_id}
