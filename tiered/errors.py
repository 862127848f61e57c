"""Errors that tieredlog raises, grouped by the reaction that they need.

::

    TieredError                         .code  .exit_code  .retriable  .hint
    ├── ConfigError                     2   fix the call, the option or the file
    │   ├── InvalidRecordError          2   a record that the log refuses
    │   │   ├── InvalidTimestampError   2
    │   │   ├── RecordTooLargeError     2
    │   │   ├── OutOfOrderSequenceError 2   a gap, or a duplicate too old to be recognised
    │   │   └── InvalidTxnStateError    2   the transaction's state does not allow the call
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
    ├── CommitUnknown                   75  outcome unknown; the next claim or open resolves it
    ├── DiskFullError                   75
    ├── DataLocalError                  75  stopped with data that is only on this disk
    ├── AppendTimeoutError              75  a buffered append found no room, or was not written in time
    ├── AppendHaltedError               1   an earlier batch of the appender failed: flush() raises why
    ├── ConditionalWritesUnsupportedError 1
    ├── LocalIOError                    1   the disk refused a read, a write or an fsync
    │   ├── MarkersPendingError         1   a transaction is decided, a disk refuses one of its markers
    │   ├── TooManyOpenFilesError       1   a file could not be opened: the process, or the system, has too many open
    │   ├── NotDurableError             1   records are in the log, but no descriptor was free to flush them
    │   └── LocalPermissionError        12  owner or mode of a file of the log
    ├── ForkedLogError                  1
    ├── ReentrantCallError              1   a signal handler called the log inside another call of its thread
    └── ClosedError                     1

``code`` is a stable word for machines. ``exit_code`` is the process status of the command line.
``hint`` is the next thing to do. Codes are added, never changed.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, ClassVar


class TieredError(Exception):
    """Base class of all errors. ``message`` names the failure and its object, ``hint`` the next thing to do."""

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
        """Return the error as ``--json`` prints it."""
        return {
            "message_type": "error",
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "retriable": self.retriable,
            "exit_code": self.exit_code,
        }


class ConfigError(TieredError):
    """A wrong option, name, URL or call. The call had no effect."""

    code = "config"
    exit_code = 2


class InvalidRecordError(ConfigError):
    """A record that the log refuses. ``index`` is its place in the call (0 for a single append).

    ``indexes``: places of all records that were refused for a reason of their own, ascending. ``index`` is the first.
    """

    code = "invalid_record"

    def __init__(self, message: str, *, index: int = 0, indexes: tuple[int, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.index = index
        self.indexes = indexes or (index,)


class InvalidTimestampError(InvalidRecordError):
    """A timestamp that is naive, unreadable or outside ``message.timestamp.before/after.max.ms``."""

    code = "invalid_timestamp"


class RecordTooLargeError(InvalidRecordError):
    """An encoded batch larger than ``max.message.bytes`` or ``segment.bytes``."""

    code = "record_too_large"


class OutOfOrderSequenceError(InvalidRecordError):
    """A producer's batch that does not follow its last one: a batch is missing or came too late.

    Nothing was appended. ``expected`` is the sequence that was due, -1 if none was.
    """

    code = "out_of_order_sequence"

    def __init__(self, message: str, *, expected: int = -1, index: int = 0, hint: str = "") -> None:
        super().__init__(message, index=index, hint=hint)
        self.expected = expected


class InvalidTxnStateError(InvalidRecordError):
    """A batch or call that the state of the transaction does not allow. It had no effect."""

    code = "invalid_txn_state"


class NotFoundError(TieredError):
    """A log directory, bucket or object that does not exist."""

    code = "not_found"
    exit_code = 10


class UnknownTopicError(NotFoundError):
    """A topic or partition that exists in no opened tier."""

    code = "unknown_topic"


class LogDestroyedError(NotFoundError):
    """A partition whose root existed and is gone: the log was destroyed while it was in use."""

    code = "log_destroyed"


class LockedError(TieredError):
    """A log directory whose lock another process holds. The message names that process."""

    code = "locked"
    exit_code = 11
    retriable = True


class FencedError(TieredError):
    """A partition that a newer claim owns. Appends are refused. Nothing on this disk is deleted."""

    code = "fenced"
    exit_code = 11


class ProducerFencedError(TieredError):
    """A producer or transaction coordinator that a newer epoch of it replaced. The older one must stop."""

    code = "producer_fenced"
    exit_code = 11


class RemotePermissionError(TieredError):
    """A refusal of ``operation`` on ``resource`` (credentials, policy, bucket owner), or an archived object."""

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
    """Bytes that differ from the written ones, at ``path_or_key``, ``position`` (bytes) and ``offset``.

    An unknown ``position`` or ``offset`` is -1.
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
    """A batch whose compression codec is unknown (5 to 7) or not installed."""

    code = "codec_unavailable"


class NewerFormatError(CorruptionError):
    """A file in an unknown format: a newer release wrote it, or its version field is damaged."""

    code = "newer_format"
    exit_code = 2


class OffsetOutOfRangeError(TieredError):
    """An offset ``requested`` outside ``earliest`` to ``latest`` (exclusive end) over both tiers."""

    code = "offset_out_of_range"
    exit_code = 14

    def __init__(self, message: str, *, requested: int, earliest: int, latest: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.requested = requested
        self.earliest = earliest
        self.latest = latest


class OffsetGapError(TieredError):
    """Offsets ``start`` to ``end`` (exclusive) that neither tier has. A reader never skips them silently."""

    code = "offset_gap"
    exit_code = 14

    def __init__(self, message: str, *, start: int, end: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.start = start
        self.end = end


class RemoteUnavailableError(TieredError):
    """A store that cannot be reached or answers 5xx. Data that was not uploaded is still on the disk.

    ``slow_down``: the store asked for fewer requests (503 SlowDown, 429).
    """

    code = "remote_unavailable"
    exit_code = 75
    retriable = True

    def __init__(self, message: str, *, hint: str = "", slow_down: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.slow_down = slow_down


class CommitUnknown(TieredError):
    """A commit whose outcome is unknown. Nothing was deleted.

    Upload: the PUT of a root was sent, and the next claim resolves it. Transaction: the fsync of the written decision
    failed, and the next open of the log resolves it.
    """

    code = "commit_unknown"
    exit_code = 75
    retriable = True


class DiskFullError(TieredError):
    """A disk without space, or with less than the reserve. The append had no effect."""

    code = "disk_full"
    exit_code = 75
    retriable = True


class DataLocalError(TieredError):
    """A stop or timeout while some data exists only on this disk."""

    code = "data_local"
    exit_code = 75
    retriable = True


class AppendTimeoutError(TieredError):
    """A buffered append that found no room in time and was not accepted. From a receipt: not written yet."""

    code = "append_timeout"
    exit_code = 75
    retriable = True


class AppendHaltedError(TieredError):
    """A record that was not written, because an earlier batch of its partition failed.

    The appender's ``flush`` raises that failure and then accepts records again. ``__cause__`` holds the failure, too.
    """

    code = "append_halted"


class ConditionalWritesUnsupportedError(TieredError):
    """A store that ignores ``If-Match`` or ``If-None-Match``: two writers could both win."""

    code = "conditional_writes_unsupported"


class LocalIOError(TieredError):
    """A refusal of the operating system to read, write, rename or fsync a file of the log."""

    code = "local_io"


class MarkersPendingError(LocalIOError):
    """A durably decided transaction with an unmarked partition. The next open of the log writes the marker."""

    code = "markers_pending"


class TooManyOpenFilesError(LocalIOError):
    """A file that could not be opened: the process or the system has too many. The call had no effect on it."""

    code = "too_many_open_files"


class NotDurableError(LocalIOError):
    """A flush that found no free descriptor. The records are in the log: do not append them again."""

    code = "not_durable"


class LocalPermissionError(LocalIOError):
    """A file or directory of the log that this user may not read or write."""

    code = "local_permission"
    exit_code = 12


class ForkedLogError(TieredError):
    """A use of the parent's log by a forked child. Open the log after the fork instead."""

    code = "forked"


class ReentrantCallError(TieredError):
    """A call of the log by a signal handler or finalizer inside another call of the same thread.

    Waiting would never end. The call had no effect.
    """

    code = "reentrant_call"


class ClosedError(TieredError):
    """A use of a log, reader or store after it was closed."""

    code = "closed"


def install_command(extra: str) -> str:
    """Return the command for hints that installs the packages of ``extra``.

    The command names the packages themselves, because this distribution may exist only as a wheel or a checkout.
    """
    import importlib.metadata  # noqa: PLC0415  heavy, and only an error needs it

    try:
        required = importlib.metadata.requires("tieredlog") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path that is not installed
        return f"pip install {shlex.quote(f'{Path(__file__).parents[1]}[{extra}]')}"
    parted = [line.partition("; extra == ") for line in required]
    packages = sorted(package for package, _, marker in parted if marker.strip("'\"") == extra)
    return f"pip install {shlex.join(packages)}"
