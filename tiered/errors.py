"""Errors that tieredlog raises, one tree below :class:`TieredError`.

``code`` is a stable word for machines. ``exit_code`` is the process status of the command line. ``retriable``: the same
call may succeed later. ``hint`` of a class is the usual next step, ``hint`` of an error the step for its case. Codes
are added, never changed. ``python -m tiered.errors`` prints all of them.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, ClassVar


class TieredError(Exception):
    """Base class of all errors. ``message``: what failed, and on which object."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False
    hint: str = "read the message; on the command line, run the command again with `-v`"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def next_step(self) -> str:
        """Return the hint of this error, or that of its class. Empty for a plain TieredError without a hint."""
        return self.hint or ("" if type(self) is TieredError else type(self).hint)

    def __str__(self) -> str:
        return f"{self.message} ({self.next_step})" if self.next_step else self.message

    def as_json(self) -> dict[str, Any]:
        """Return the error as JSON values, as ``--json`` prints it."""
        return {
            "message_type": "error",
            "code": self.code,
            "message": self.message,
            "hint": self.next_step,
            "retriable": self.retriable,
            "exit_code": self.exit_code,
        }


def message_of(error: Exception) -> str:
    """Return the text of ``error`` without its hint, for the message of another error."""
    return error.message if isinstance(error, TieredError) else str(error)


class ConfigError(TieredError):
    """A wrong option, name, URL or call. The call had no effect."""

    code = "config"
    exit_code = 2
    hint = "correct the argument, option, name, URL or file that the message names"


class InvalidRecordError(ConfigError):
    """Record that the log refuses. ``index``: its position in the call's records (0 for a single append).

    ``indexes``: ascending positions of all records that are wrong themselves. ``index`` is the first of them. Other
    records of the call may be refused with them.
    """

    code = "invalid_record"
    hint = "correct the record at `index` and append it again"

    def __init__(self, message: str, *, index: int = 0, indexes: tuple[int, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.index = index
        self.indexes = indexes or (index,)


class InvalidTimestampError(InvalidRecordError):
    """Timestamp without a time zone, in no known format, or outside ``message.timestamp.before/after.max.ms``."""

    code = "invalid_timestamp"
    hint = "pass milliseconds since 1970, an aware datetime, or None for now"


class RecordTooLargeError(InvalidRecordError):
    """An encoded batch larger than ``max.message.bytes`` or ``segment.bytes``."""

    code = "record_too_large"
    hint = "write smaller records, or raise `max.message.bytes` of the topic"


class OutOfOrderSequenceError(InvalidRecordError):
    """Batch whose sequence number does not follow the producer's previous batch: one is missing, or this one is old.

    Nothing was appended. ``expected``: the sequence number that the log expects next, -1 if it expects none.
    """

    code = "out_of_order_sequence"
    hint = "start the producer again"

    def __init__(self, message: str, *, expected: int = -1, index: int = 0, hint: str = "") -> None:
        super().__init__(message, index=index, hint=hint)
        self.expected = expected


class InvalidTxnStateError(InvalidRecordError):
    """Batch or call that the state of the transaction does not allow. It had no effect."""

    code = "invalid_txn_state"
    hint = "begin a new transaction"


class NotFoundError(TieredError):
    """A log directory, bucket or object that does not exist."""

    code = "not_found"
    exit_code = 10
    hint = "correct the name, or create it"


class UnknownTopicError(NotFoundError):
    """Topic or partition that is neither on the disk nor in the bucket that the log or reader has opened."""

    code = "unknown_topic"
    hint = "`tiered topic list` names the topics"


class LogDestroyedError(NotFoundError):
    """Partition or topic that existed and was deleted while it was in use, or whose root is gone from the bucket."""

    code = "log_destroyed"
    hint = "`tiered check` or `tiered.admin.check()` shows what is left; `tiered repair` brings a lost root back"


class LockedError(TieredError):
    """Log directory that is open for writing elsewhere, in this process or another. The message names the holder.

    A claim of an empty partition raises it, too, if the first records were appended at the same time.
    """

    code = "locked"
    exit_code = 11
    retriable = True
    hint = "stop the other process, or read without the lock: `tiered.open_reader(log_dir=...)`"


class FencedError(TieredError):
    """Partition that a newer claim owns. Appends are refused. No file on this disk is deleted."""

    code = "fenced"
    exit_code = 11
    hint = "`tiered repair rejoin` sets the local tail aside and starts again at the end of the bucket"


class ProducerFencedError(TieredError):
    """Producer or transaction coordinator with an older epoch than the newest one. It must stop."""

    code = "producer_fenced"
    exit_code = 11
    hint = "stop this producer: a newer one has its id"


class RemotePermissionError(TieredError):
    """The store refuses ``operation`` on ``resource`` (credentials, policy, bucket owner, archived object).

    ``is_archived``: the object is in an archive class, and must be restored in the store before it can be read.
    """

    code = "permission"
    exit_code = 12
    hint = "`tiered doctor` names what is refused; `tiered iam-policy` prints the policy"

    def __init__(
        self, message: str, *, operation: str = "", resource: str = "", is_archived: bool = False, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.operation = operation
        self.resource = resource
        self.is_archived = is_archived


class CorruptionError(TieredError):
    """Damaged bytes in the file or object ``path_or_key``, at ``position`` (in bytes) and ``offset``.

    ``position`` and ``offset`` are -1 if unknown.
    """

    code = "corruption"
    exit_code = 13
    hint = "`tiered check` or `tiered.admin.check()` shows the damage; `tiered repair` plans its repair"

    def __init__(
        self, message: str, *, path_or_key: str = "", position: int = -1, offset: int = -1, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.path_or_key = path_or_key
        self.position = position
        self.offset = offset


class CodecUnavailableError(CorruptionError):
    """Batch with a compression codec that does not exist (5 to 7)."""

    code = "codec_unavailable"
    hint = "the batch is damaged, or was written by a newer Kafka"


class NewerFormatError(CorruptionError):
    """File or object in an unknown format. A newer release wrote it, or its version field is damaged."""

    code = "newer_format"
    exit_code = 2
    hint = "upgrade tieredlog"


class OffsetOutOfRangeError(TieredError):
    """Offset ``requested`` below ``earliest`` or above ``latest``, the end of the records in both tiers."""

    code = "offset_out_of_range"
    exit_code = 14
    hint = "start within the range that the message names"

    def __init__(self, message: str, *, requested: int, earliest: int, latest: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.requested = requested
        self.earliest = earliest
        self.latest = latest


class LogTruncatedError(TieredError):
    """Position ``requested`` of a group in a log that was truncated below that position.

    Records from offset ``diverged`` on are missing, or are not those that the group has read.
    """

    code = "log_truncated"
    exit_code = 14
    hint = '`tiered group reset` sets the position; a consumer with `on_truncated="rewind"` goes back by itself'

    def __init__(self, message: str, *, requested: int, diverged: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.requested = requested
        self.diverged = diverged


class OffsetGapError(TieredError):
    """Offsets ``start`` to ``end`` (exclusive) that neither tier has. A reader never skips them silently."""

    code = "offset_gap"
    exit_code = 14
    hint = "`tiered check` or `tiered.admin.check()` shows what is missing; `tiered repair` plans its repair"

    def __init__(self, message: str, *, start: int, end: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.start = start
        self.end = end


class RemoteUnavailableError(TieredError):
    """Store that cannot be reached or answers 5xx. Records that are not uploaded stay on the disk.

    ``slow_down``: the store asked for fewer requests (503 SlowDown, 429).
    """

    code = "remote_unavailable"
    exit_code = 75
    retriable = True
    hint = "try again when the store answers; nothing is lost"

    def __init__(self, message: str, *, hint: str = "", slow_down: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.slow_down = slow_down


class CommitUnknownError(TieredError):
    """A commit whose outcome is unknown. Nothing was deleted.

    Upload: the store gave no answer to the PUT of a root. The next claim finds out the outcome. Transaction: the fsync
    of the commit failed. The next open of the log finds out the outcome.
    """

    code = "commit_unknown"
    exit_code = 75
    retriable = True
    hint = "repeat the call, or open the log again: both resolve the outcome"


class PartitionLostError(TieredError):
    """Partition that another member of the group reads now. That member starts at the committed position."""

    code = "partition_lost"
    exit_code = 75
    retriable = True
    hint = "continue with the other partitions: the new owner starts at the committed position"


class DiskFullError(TieredError):
    """Disk without space, or with less free space than the reserve. The append had no effect."""

    code = "disk_full"
    exit_code = 75
    retriable = True
    hint = "free space on the disk and append again"


class DataLocalError(TieredError):
    """Stop of an uploader, or a wait that timed out, while some records exist only on this disk."""

    code = "data_local"
    exit_code = 75
    retriable = True
    hint = "call `sync()` again, or keep the uploader running"


class AppendTimeoutError(TieredError):
    """Buffered append that found no room in time. The record was not accepted.

    A receipt raises it for a record that is not written yet. That record may still be written: do not append it again.
    """

    code = "append_timeout"
    exit_code = 75
    retriable = True
    hint = "append again later, or raise `buffer_bytes` or `max_block_ms` of the appender"


class AppendHaltedError(TieredError):
    """Record that was not written, because an earlier batch of its partition failed.

    ``__cause__`` is the error of that batch. ``flush()`` of the appender raises it. Then the partition accepts records.
    """

    code = "append_halted"
    hint = "call `flush()` of the appender: it raises the cause, and later appends are accepted"


class ConditionalWritesUnsupportedError(TieredError):
    """Store that ignores ``If-Match`` or ``If-None-Match``. It would accept conflicting writes of two writers."""

    code = "conditional_writes_unsupported"
    hint = "use a store with conditional writes; `tiered doctor` tests one"


class LocalIOError(TieredError):
    """The operating system failed to read, write, rename or fsync a file of the log."""

    code = "local_io"
    hint = "check the file that the message names; after an input/output error read the kernel log (`dmesg`)"


class MarkersPendingError(LocalIOError):
    """Committed or aborted transaction with a partition that has no marker yet. The outcome itself is on disk."""

    code = "markers_pending"
    hint = "open the log again: the open writes the marker"


class TooManyOpenFilesError(LocalIOError):
    """File that could not be opened, because the process or the system has too many open files. It is unchanged."""

    code = "too_many_open_files"
    hint = "raise `ulimit -n`, or close files"


class NotDurableError(LocalIOError):
    """Flush without effect, because no file descriptor was free. The records are in the log, but not fsynced."""

    code = "not_durable"
    hint = "raise `ulimit -n` and flush again; do not append again"


class LocalPermissionError(LocalIOError):
    """A file or directory of the log that this user may not read or write."""

    code = "local_permission"
    exit_code = 12
    hint = "correct the owner and mode of the file"


class ForkedLogError(TieredError):
    """Use of a log in a forked child of the process that opened it. Open the log after the fork instead."""

    code = "forked"
    hint = "open the log in the child process"


class ReentrantCallError(TieredError):
    """Call of the log by a signal handler or finalizer inside another call of the same thread.

    It would wait for itself for ever. The call had no effect.
    """

    code = "reentrant_call"
    hint = "let the signal handler set a flag, and append outside of it"


class ClosedError(TieredError):
    """Use of a log, reader or store after its close."""

    code = "closed"
    hint = "open it again"


class JobFailedError(TieredError):
    """Spark job with failed tasks. The message is that of the first failed task."""

    code = "job_failed"
    hint = "run the same job again: finished work stays"


def error_classes() -> list[type[TieredError]]:
    """Return the error classes of this module, in the order of exit codes and names."""
    found: list[type[TieredError]] = [TieredError]
    for error in found:
        found += error.__subclasses__()
    return sorted((each for each in found if each.__module__ == __name__), key=lambda e: (e.exit_code, e.__name__))


def as_markdown() -> str:
    """Return the documentation page of all errors, in Markdown."""
    lines = [
        "# Errors",
        "",
        "Each error has these fields, in Python and in `--json`. A message may name a better next step for its case.",
        "",
        "| error | code | meaning | what to do | retriable | exit code |",
        "|---|---|---|---|---|---|",
    ]
    for error in error_classes():
        meaning = " ".join((error.__doc__ or "").partition("\n\n")[0].replace("``", "`").split())
        again = "yes" if error.retriable else "no"
        lines.append(
            f"| `{error.__name__}` | `{error.code}` | {meaning} | {error.hint} | {again} | {error.exit_code} |"
        )
    return "\n".join(lines) + "\n"


def install_command(extra: str) -> str:
    """Return the ``pip`` command that installs the packages of the extra ``extra``, for hints.

    The command lists the packages themselves, because no package index has this distribution. In a checkout that is
    not installed, the command names the checkout.
    """
    import importlib.metadata  # noqa: PLC0415  heavy, and only an error needs it

    try:
        required = importlib.metadata.requires("tieredlog") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path that is not installed
        return f"pip install {shlex.quote(f'{Path(__file__).parents[1]}[{extra}]')}"
    parted = [line.partition("; extra == ") for line in required]
    packages = sorted(package for package, _, marker in parted if marker.strip("'\"") == extra)
    return f"pip install {shlex.join(packages)}"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
