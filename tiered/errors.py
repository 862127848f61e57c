"""Everything that tieredlog raises, grouped by what a handler does about it.

::

    TieredError                         .code  .exit_code  .retriable  .hint
    ├── ConfigError                     2   fix the call, the option or the file
    │   ├── InvalidRecordError          2   a record that the log refuses
    │   │   ├── InvalidTimestampError   2
    │   │   ├── RecordTooLargeError     2
    │   │   ├── OutOfOrderSequenceError 2   a gap, or a repetition too old to be recognised
    │   │   └── InvalidTxnStateError    2   not what this transaction may do now
    ├── NotFoundError                   10  create it, or correct the name
    │   ├── UnknownTopicError           10
    │   └── LogDestroyedError           10  the root was there and is gone
    ├── LockedError                     11  another process has it
    ├── FencedError                     11  a newer claim owns the partition
    ├── ProducerFencedError             11  a newer epoch of this producer, or of its coordinator
    ├── RemotePermissionError           12  credentials or policy
    ├── CorruptionError                 13  bytes are not what was written
    │   ├── CodecUnavailableError       13
    │   └── NewerFormatError            2   a newer release wrote it: upgrade
    ├── OffsetOutOfRangeError           14  outside earliest..latest
    ├── OffsetGapError                  14  in no tier; never skipped silently
    ├── RemoteUnavailableError          75  try again
    ├── CommitUnknown                   75  outcome not known; the next claim, or the next open, settles it
    ├── DiskFullError                   75
    ├── DataLocalError                  75  stopped with data that is only on this disk
    ├── AppendTimeoutError              75  a buffered append found no room, or was not written in time
    ├── AppendHaltedError               1   an earlier batch of the appender failed: flush() tells, and goes on
    ├── ConditionalWritesUnsupportedError 1
    ├── LocalIOError                    1   the disk refused a read, a write or an fsync
    │   ├── MarkersPendingError         1   a transaction is decided, a disk keeps one of its markers out
    │   ├── TooManyOpenFilesError       1   a file could not be opened: the process, or the system, has too many open
    │   ├── NotDurableError             1   records are in the log; they could not be flushed, for want of a descriptor
    │   └── LocalPermissionError        12  owner or mode of a file of the log
    ├── ForkedLogError                  1
    ├── ReentrantCallError              1   a signal handler called the log inside another call of its thread
    └── ClosedError                     1

``code`` is a stable word for machines, ``exit_code`` the process status of the command line (the
table in the README), ``hint`` the next thing to do. Codes are only ever added.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, ClassVar


class TieredError(Exception):
    """Root of the tree. ``message`` says what happened and to what, ``hint`` what to do next."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def as_json(self) -> dict[str, Any]:
        """The error as the CLI's ``--json`` prints it."""
        return {
            "message_type": "error",
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "retriable": self.retriable,
            "exit_code": self.exit_code,
        }


class ConfigError(TieredError):
    """An option, a name, a URL or a call is wrong; nothing was done."""

    code = "config"
    exit_code = 2


class InvalidRecordError(ConfigError):
    """A record that the log refuses; ``index`` is its place in the call (0 for a single append).

    ``indexes``: the places of all that are refused for a reason of their own, ascending; ``index`` is the first.
    """

    code = "invalid_record"

    def __init__(self, message: str, *, index: int = 0, indexes: tuple[int, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.index = index
        self.indexes = indexes or (index,)


class InvalidTimestampError(InvalidRecordError):
    """A timestamp outside ``message.timestamp.before/after.max.ms``, naive, or unreadable."""

    code = "invalid_timestamp"


class RecordTooLargeError(InvalidRecordError):
    """An encoded batch larger than ``max.message.bytes`` or ``segment.bytes``."""

    code = "record_too_large"


class OutOfOrderSequenceError(InvalidRecordError):
    """A producer's batch does not follow its last one: something before it is missing, or it comes too late.

    Nothing was appended. ``expected`` is the sequence that was due, -1 if none was.
    """

    code = "out_of_order_sequence"

    def __init__(self, message: str, *, expected: int = -1, index: int = 0, hint: str = "") -> None:
        super().__init__(message, index=index, hint=hint)
        self.expected = expected


class InvalidTxnStateError(InvalidRecordError):
    """A batch, or a change of a transaction, that the transaction's state does not allow. Nothing was done."""

    code = "invalid_txn_state"


class NotFoundError(TieredError):
    """The log directory, the bucket or the object that the call names does not exist."""

    code = "not_found"
    exit_code = 10


class UnknownTopicError(NotFoundError):
    """No such topic or partition in the tiers that were opened."""

    code = "unknown_topic"


class LogDestroyedError(NotFoundError):
    """The root of a partition was seen before and is gone: the log was destroyed under its reader or writer."""

    code = "log_destroyed"


class LockedError(TieredError):
    """Another process holds the lock of the log directory; the message names it."""

    code = "locked"
    exit_code = 11
    retriable = True


class FencedError(TieredError):
    """A newer claim owns the partition. Nothing on this disk is deleted; appends are refused."""

    code = "fenced"
    exit_code = 11


class ProducerFencedError(TieredError):
    """A newer epoch of the same producer id, or of the transaction coordinator, has written: the older must stop."""

    code = "producer_fenced"
    exit_code = 11


class RemotePermissionError(TieredError):
    """The store refused ``operation`` on ``resource``: credentials, policy, bucket owner, or ``is_archived``."""

    code = "permission"
    exit_code = 12

    def __init__(
        self, message: str, *, operation: str = "", resource: str = "", is_archived: bool = False, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.operation = operation
        self.resource = resource
        self.is_archived = is_archived


class CorruptionError(TieredError):
    """Bytes are not what was written: ``path_or_key``, ``position`` (bytes) and ``offset`` say where.

    ``position`` and ``offset`` are -1 where they are not known.
    """

    code = "corruption"
    exit_code = 13

    def __init__(
        self, message: str, *, path_or_key: str = "", position: int = -1, offset: int = -1, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.path_or_key = path_or_key
        self.position = position
        self.offset = offset


class CodecUnavailableError(CorruptionError):
    """A batch names a compression codec that is unknown (5 to 7) or not installed."""

    code = "codec_unavailable"


class NewerFormatError(CorruptionError):
    """A file of a format that this release does not know: written by a newer one, or damaged in its version."""

    code = "newer_format"
    exit_code = 2


class OffsetOutOfRangeError(TieredError):
    """``requested`` lies outside ``earliest`` to ``latest`` (exclusive end) over both tiers."""

    code = "offset_out_of_range"
    exit_code = 14

    def __init__(self, message: str, *, requested: int, earliest: int, latest: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.requested = requested
        self.earliest = earliest
        self.latest = latest


class OffsetGapError(TieredError):
    """Offsets ``start`` to ``end`` (exclusive) are in neither tier; a reader never skips them by itself."""

    code = "offset_gap"
    exit_code = 14

    def __init__(self, message: str, *, start: int, end: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.start = start
        self.end = end


class RemoteUnavailableError(TieredError):
    """The store cannot be reached or answers 5xx; the data that was to be sent is still local.

    ``slow_down``: it answered that it is asked too often (503 SlowDown, 429).
    """

    code = "remote_unavailable"
    exit_code = 75
    retriable = True

    def __init__(self, message: str, *, hint: str = "", slow_down: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.slow_down = slow_down


class CommitUnknown(TieredError):
    """A root PUT was sent and its outcome is not known: the next claim settles it. Nothing was deleted.

    Of a transaction: its decision was written, but its fsync failed: the next open of the log settles it.
    """

    code = "commit_unknown"
    exit_code = 75
    retriable = True


class DiskFullError(TieredError):
    """No space left, or less than the reserve; the append did not happen."""

    code = "disk_full"
    exit_code = 75
    retriable = True


class DataLocalError(TieredError):
    """Stopped, or timed out, with data that only this disk holds."""

    code = "data_local"
    exit_code = 75
    retriable = True


class AppendTimeoutError(TieredError):
    """A buffered append found no room in time and was not taken; or, from its receipt, is not written yet."""

    code = "append_timeout"
    exit_code = 75
    retriable = True


class AppendHaltedError(TieredError):
    """Not written: an earlier batch of this partition failed, and nothing is to overtake it.

    The appender's ``flush`` raises why, and takes records again; ``__cause__`` is it, too.
    """

    code = "append_halted"


class ConditionalWritesUnsupportedError(TieredError):
    """The store ignores ``If-Match`` or ``If-None-Match``: two writers could both win."""

    code = "conditional_writes_unsupported"


class LocalIOError(TieredError):
    """The operating system refused to read, write, rename or fsync a file of the log."""

    code = "local_io"


class MarkersPendingError(LocalIOError):
    """A transaction is decided, durably, but a partition could not be marked: the next open of the log does it."""

    code = "markers_pending"


class TooManyOpenFilesError(LocalIOError):
    """The process, or the system, has too many open files for another one; nothing was done to it."""

    code = "too_many_open_files"


class NotDurableError(LocalIOError):
    """Records are in the log, and a flush could not open what it needs: they are not to be appended again."""

    code = "not_durable"


class LocalPermissionError(LocalIOError):
    """The operating system lets this user not read or write a file or directory of the log."""

    code = "local_permission"
    exit_code = 12


class ForkedLogError(TieredError):
    """A forked child used its parent's log: open the log after the fork instead."""

    code = "forked"


class ReentrantCallError(TieredError):
    """A signal handler, or a finalizer, called the log while its thread was inside another call of it.

    Waiting would never end. Nothing was done.
    """

    code = "reentrant_call"


class ClosedError(TieredError):
    """The log, the reader or the store was closed before."""

    code = "closed"


def install_command(extra: str) -> str:
    """Return the command for hints that installs the packages of ``extra``.

    The packages themselves are named: a wheel or a checkout may be all that there is of this one.
    """
    import importlib.metadata  # noqa: PLC0415  heavy, and only an error needs it

    try:
        required = importlib.metadata.requires("tieredlog") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path, which nothing installed
        return f"pip install {shlex.quote(f'{Path(__file__).parents[1]}[{extra}]')}"
    parted = [line.partition("; extra == ") for line in required]
    packages = sorted(package for package, _, marker in parted if marker.strip("'\"") == extra)
    return f"pip install {shlex.join(packages)}"
