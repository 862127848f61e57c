"""``tiered-claims.json``: for each partition the proof that this volume made the last claim. The file is append-only.

One line is one write, fsynced before it counts, and holds the whole proof of each partition that it names::

    {"version":2,"rewritten":3}
    {"crc":"9f3a01c7","set":[["flights",0,{"token":"...","last_append":"...","restored_from":null}]]}
    {"crc":"0077aa12","set":[["flights",0,null],["flights",1,{...}]]}        null: deleted

A claim or a commit thus costs one short write for any number of partitions. Concurrent writes share one line. ``crc``
is the CRC32C of the value of ``"set"``. A torn last line was never acknowledged and is overwritten. An earlier damaged
line is an error, because a proof older than the root's locks the owner out. The file is rewritten when its size has
doubled.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tiered.errors import CorruptionError, LocalIOError, TieredError
from tiered.format.kernels import PlainLock, crc32c
from tiered.local.disk.directory_files import first_json, refuse_newer
from tiered.local.disk.files import MAX_SMALL_FILE_BYTES, Files, FileState
from tiered.model import TopicPartition

CLAIMS_NAME = "tiered-claims.json"
CLAIMS_VERSION = 2
REWRITE_BYTES = 65_536
"""Size of the file below which it is never rewritten. Above, it is rewritten when its size has doubled."""

_HEADER_LIMIT = 128
_BEFORE_CRC, _BEFORE_SET = b'{"crc":"', b'","set":'
_PAYLOAD_AT = len(_BEFORE_CRC) + 8 + len(_BEFORE_SET)


@dataclass(frozen=True, slots=True)
class ClaimProof:
    """Proof that this volume made the last claim of a partition. Its values are compared with those in the root.

    ``token``: of the last claim. ``last_append``: id of the last commit that added records. ``restored_from``: version
    and next offset of the root from which this directory was restored. Each is None if there is none.
    """

    token: str | None = None
    last_append: str | None = None
    restored_from: tuple[int, int] | None = None


NO_PROOF = ClaimProof()
_Change = Callable[[ClaimProof], ClaimProof | None]


@dataclass(slots=True)
class _Waiting:
    """Write that one thread requests and that any thread may carry out. ``error``: why it failed."""

    changes: Mapping[TopicPartition, _Change]
    done: bool = False
    error: TieredError | None = None


class Claims:
    """Claim proofs of one log directory. Thread-safe. Each call first reads the writes of other processes.

    A proof is fsynced *before* the root PUT with the same values. An outdated copy of the volume then fails the
    comparison. Only the holder of the uploader's lock writes, or the holder of ``.lock`` after a restore.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self.path = directory / CLAIMS_NAME
        self._files = files
        self._proofs: dict[TopicPartition, ClaimProof] = {}
        self._seen: FileState | None = None
        self._header = b""  # first line in version 2; a different one is a different file, even with the same inode
        self._end = 0  # end of the last whole line; 0 without such a file
        self._compact_bytes = 0
        self._suspect = False  # a write failed: its line may be there
        self._queue: list[_Waiting] = []
        self._queue_lock = PlainLock()
        self._busy = threading.RLock()

    # ------------------------------------------------------------------ reading

    def read(self) -> dict[TopicPartition, ClaimProof]:
        """Return the proofs of all partitions; an empty dict without the file.

        Raises CorruptionError if the file is damaged.
        """
        with self._busy:
            self._refresh()
            return dict(self._proofs)

    def proof(self, tp: TopicPartition) -> ClaimProof:
        """Return the proof of one partition; NO_PROOF, whose values are None, if the file has none.

        An unchanged file costs one ``stat``. Raises CorruptionError if the file is damaged.
        """
        return self.find(tp) or NO_PROOF

    def find(self, tp: TopicPartition) -> ClaimProof | None:
        """Return the stored proof of one partition, None if the file has none. Raises the errors of :meth:`proof`."""
        with self._busy:
            self._refresh()
            return self._proofs.get(tp)

    def _refresh(self) -> None:
        state = self._files.state(self.path)
        if state is None:
            self._forget_file()
        elif state != self._seen:
            handle = self._files.open_read(self.path)
            try:
                self._read(handle)
            except BaseException:
                self._forget_file()
                raise
            finally:
                self._files.close(handle)
            self._seen = state

    def _forget_file(self) -> None:
        self._proofs, self._seen, self._header, self._end, self._compact_bytes = {}, None, b"", 0, 0

    def _read(self, handle: int) -> None:
        """Read the lines that were appended since the last read, or the whole file if it was replaced."""
        size = self._files.size(handle)
        if not self._header or self._end > size or self._bytes(handle, 0, len(self._header)) != self._header:
            self._forget_file()
            header, line_end, _ = self._bytes(handle, 0, min(size, _HEADER_LIMIT)).partition(b"\n")
            if not line_end or _version(header) != CLAIMS_VERSION:
                refuse_newer(self.path, first_json(header), CLAIMS_VERSION)
                raise self._corrupt(f"its first line is not that of version {CLAIMS_VERSION}")
            self._header = header + line_end
            self._end = self._compact_bytes = len(self._header)
        self._replace_lines(self._bytes(handle, self._end, size))

    def _replace_lines(self, data: bytes) -> None:
        lines = data.split(b"\n")[:-1]  # bytes after the last line end are torn
        for number, line in enumerate(lines):
            entries = _parsed(line)
            if entries is None:
                if number + 1 < len(lines):
                    raise self._corrupt(f"the line at byte {self._end} is damaged")
                return
            self._apply(entries)
            self._end += len(line) + 1

    def _bytes(self, handle: int, start: int, end: int) -> bytes:
        if end - start > MAX_SMALL_FILE_BYTES:
            raise self._corrupt(f"it has {end} bytes, more than {MAX_SMALL_FILE_BYTES}")
        data = bytearray(end - start)
        return bytes(data[: self._files.read_into(handle, data, start)])

    def _apply(self, entries: Any) -> None:
        try:
            changed = {
                TopicPartition(sys.intern(str(topic)), int(partition)): None if found is None else _proof(found)
                for topic, partition, found in entries
            }
        except (KeyError, TypeError, ValueError) as error:
            raise self._corrupt(f"{type(error).__name__} {error}") from None
        self._load(changed)

    def _load(self, changed: Mapping[TopicPartition, ClaimProof | None]) -> None:
        for tp, proof in changed.items():
            if proof is None:
                self._proofs.pop(tp, None)
            else:
                self._proofs[tp] = proof

    def _corrupt(self, why: str) -> CorruptionError:
        return CorruptionError(
            f"{self.path} cannot be read: {why}",
            path_or_key=str(self.path),
            hint="put back a current copy, or move the file away and run `tiered repair rejoin TOPIC:P`: the file "
            "proves which log directory this is",
        )

    # ------------------------------------------------------------------ writing

    def write(self, tp: TopicPartition, **changes: Any) -> None:
        """Set fields of one partition's :class:`ClaimProof` to the values in ``changes``, durably."""
        self._write({tp: lambda proof: replace(proof, **changes)})

    def keep(self, tp: TopicPartition, token: str | None, last_append: str | None) -> None:
        """Store the token of a claim and the id of an append commit, durably. None leaves a value as it is."""
        given = {"token": token, "last_append": last_append}
        self.write(tp, **{name: id_ for name, id_ in given.items() if id_ is not None})

    def forget(self, gone: Collection[TopicPartition]) -> None:
        """Remove the proofs of deleted partitions, durably."""
        known = self.read().keys() & set(gone)
        if known:
            self._write({tp: lambda _: None for tp in sorted(known)})

    def _write(self, changes: Mapping[TopicPartition, _Change]) -> None:
        """Write changes. Concurrent threads share one line and one fsync: one thread writes the changes of all."""
        mine = _Waiting(changes)
        with self._queue_lock:
            self._queue.append(mine)
        with self._busy:
            if not mine.done:
                with self._queue_lock:
                    batch, self._queue = self._queue, []
                self._carry_out(batch)
        if mine.error is not None:
            raise mine.error

    def _carry_out(self, batch: list[_Waiting]) -> None:
        error: TieredError | None = None
        ended = False
        try:
            self._refresh()
            proofs: dict[TopicPartition, ClaimProof | None] = {}
            for waiting in batch:
                for tp, change in waiting.changes.items():
                    proofs[tp] = change(proofs.get(tp) or self._proofs.get(tp, NO_PROOF))
            self._store(proofs)
            ended = True
        except TieredError as raised:
            error, ended = raised, True
        finally:
            if not ended:
                error = LocalIOError(
                    f"{self.path} may not be written: the thread that wrote it was interrupted", hint="try again"
                )
            for waiting in batch:
                waiting.done, waiting.error = True, error

    def _store(self, changed: Mapping[TopicPartition, ClaimProof | None]) -> None:
        line = _line(changed)
        if self._suspect or not self._end or self._end + len(line) > max(REWRITE_BYTES, 2 * self._compact_bytes):
            self._rewrite(changed)
            return
        self._suspect = True
        self._files.patch(self.path, line, self._end, sync=True)
        self._suspect = False
        self._load(changed)
        self._end += len(line)
        self._seen = self._files.state(self.path)

    def _rewrite(self, changed: Mapping[TopicPartition, ClaimProof | None]) -> None:
        proofs = {tp: proof for tp, proof in {**self._proofs, **changed}.items() if proof is not None}
        before = json.loads(self._header)["rewritten"] if self._header else 0
        header = (
            json.dumps({"version": CLAIMS_VERSION, "rewritten": before + 1}, separators=(",", ":")).encode() + b"\n"
        )
        data = header + _line(dict(sorted(proofs.items())))
        self._suspect = True
        self._seen = self._files.replace(self.path, data)
        self._suspect = False
        self._proofs, self._header = proofs, header
        self._end = self._compact_bytes = len(data)


def _line(proofs: Mapping[TopicPartition, ClaimProof | None]) -> bytes:
    entries = ([tp.topic, tp.partition, None if proof is None else asdict(proof)] for tp, proof in proofs.items())
    texts = [json.dumps(entry, separators=(",", ":")) for entry in entries]  # no object of each at once
    payload = f"[{','.join(texts)}]".encode()
    return b"%s%08x%s%s}\n" % (_BEFORE_CRC, crc32c(payload), _BEFORE_SET, payload)


def _parsed(line: bytes) -> Any:
    """Return the entries of a line, None if the line is torn or damaged."""
    payload = line[_PAYLOAD_AT:-1]
    expected = b"%s%08x%s" % (_BEFORE_CRC, crc32c(payload), _BEFORE_SET)
    # mutant claim-line-has-crc
    if line[:_PAYLOAD_AT] != expected or line[-1:] != b"}":
        return None
    return json.loads(payload)


def _version(line: bytes) -> int:
    """Return the version in the first ``line`` of the file, 0 if it has none."""
    try:
        value = json.loads(line)
        return int(value["version"]) if "rewritten" in value and int(value["rewritten"]) > 0 else 0
    except (KeyError, TypeError, ValueError):
        return 0


def _proof(entry: Mapping[str, Any]) -> ClaimProof:
    token, last_append, restored = entry["token"], entry["last_append"], entry.get("restored_from")
    return ClaimProof(
        None if token is None else str(token),
        None if last_append is None else str(last_append),
        None if restored is None else (int(restored[0]), int(restored[1])),
    )
