"""State of a log directory's uploader for ``status``: from its HTTP report, otherwise from the file beside its lock.

The file serves for an uploader in an application, one with ``--http off``, and one that hangs. It has the uploader's
worst problem.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiered.clock import Clock
from tiered.engine.scanner import living
from tiered.errors import CorruptionError, RemoteUnavailableError, TieredError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.lock import DirectoryLock
from tiered.local.disk.uploader_files import PauseFile, uploader_lock
from tiered.plan.pacing import Pause
from tiered.program.output import human_bytes, human_duration
from tiered.times import format_time

QUERY_SECONDS = 5.0
MAX_STATUS_BYTES = 64 * 1024 * 1024
LAG_LIMIT_MS = 3_600_000
"""Lag in milliseconds above which an upload is late, if the uploader has no limit of its own (``lag_limit``)."""

CODES = {
    "directory_gone": "the log directory is gone",
    "damaged": "something is damaged",
    "unreadable": "something on the disk cannot be read",
    "fenced": "another volume owns the partition",
    "refused": "uploads are refused",
    "failed": "uploads fail",
    "paused": "uploads are paused",
    "stopped": "no uploader runs",
    "hangs": "the uploader does not answer",
    "silent": "the store does not answer a request",
    "unavailable": "the store is not available",
    "behind": "uploads are behind",
    "disk_low": "the disk is nearly full",
    "bucket": "the bucket's part is not known",
    "problem": "something needs a look",
}
"""Reasons why a log is not safe, the worst first: stable words, and the beginning of the first line."""

_OF_WAITS = {"fenced": "fenced", "permission": "refused", "paused": "paused", "retry": "unavailable"}
"""Codes for the states of a waiting partition that are not work in progress."""
_WORK = frozenset({"", "seal", "upload", "commit", "pool", "claim", "topic", "cancel"})
_DAMAGE = frozenset({"corruption", "offset_gap", "log_destroyed"})


@dataclass(frozen=True, slots=True)
class UnsafeReason:
    """One reason why a log is not safe. ``code``: a key of :data:`CODES`. ``unblocks``: event or command that ends it.

    ``since_ms``: time at which it began, -1 if unknown. ``topic``, ``partition``: empty and -1 for the whole log.
    """

    code: str
    text: str
    since_ms: int = -1
    unblocks: str = ""
    topic: str = ""
    partition: int = -1

    def as_json(self) -> dict[str, Any]:
        """Return the reason's fields in the output of ``--json``."""
        return {
            "code": self.code,
            "text": self.text,
            "since_ms": self.since_ms,
            "unblocks": self.unblocks,
            "topic": self.topic or None,
            "partition": self.partition if self.topic and self.partition >= 0 else None,
        }

    def __str__(self) -> str:
        return f"{self.text}; {self.unblocks}" if self.unblocks else self.text


@dataclass(frozen=True, slots=True)
class UploaderStatus:
    """State of the uploader of one log directory. ``running``: its name; empty if no process has its lock.

    ``document``: its HTTP report (``/status``), None if it serves none or does not answer. ``reasons``: why it does not
    upload records. ``pauses``: uploads paused by an operator, by topic; ``""`` for all topics.
    """

    running: str = ""
    document: Mapping[str, Any] | None = None
    reasons: Sequence[UnsafeReason] = ()
    pauses: Mapping[str, Pause] = field(default_factory=dict)

    @property
    def lag_limit_ms(self) -> int:
        """Return the lag from which an upload counts as late."""
        return LAG_LIMIT_MS if self.document is None else int(1000 * self.document["lag_limit_seconds"])

    def waits(self) -> Mapping[tuple[str, int], Mapping[str, Any]]:
        """Return each partition's entry in the uploader's report, by (topic, number). Empty without a report."""
        lines = [] if self.document is None else self.document["partitions"]
        return {(line["topic"], line["partition"]): line for line in lines}


def ask_uploader(directory: Path, clock: Clock) -> UploaderStatus:
    """Return the state of the directory's uploader. Acquires no lock."""
    files = PosixFiles()
    lock, pauses = uploader_lock(directory, files), PauseFile(directory, files).read()
    running = living(lock.holder())
    document, reasons = None, list(_paused(pauses))
    if running:
        address = str(lock.note().get("http", ""))
        try:
            document = query(address) if address else None
        except TieredError as error:
            reasons.append(UnsafeReason("hangs", f"{running}: {error.message}", clock.now_ms(), error.hint))
        reasons += _noted(lock) if document is None else reasons_of(document)
    return UploaderStatus(running, document, reasons, pauses)


def _noted(lock: DirectoryLock) -> Iterator[UnsafeReason]:
    """Yield the problem that the uploader has written into its lock file, if any."""
    try:
        document = json.loads(lock.note().get("trouble", "null"))
        if document is not None:
            yield UnsafeReason(
                str(document["code"]),
                str(document["text"]),
                int(document["since_ms"]),
                str(document["unblocks"]),
                str(document["topic"] or ""),
                -1 if document["partition"] is None else int(document["partition"]),
            )
    except (ValueError, KeyError, TypeError):  # the note is being written at this moment
        return


def _paused(pauses: Mapping[str, Pause]) -> Iterator[UnsafeReason]:
    for topic, pause in sorted(pauses.items()):
        why = f" ({pause.reason})" if pause.reason else ""
        command = f"`tiered-uploader resume {topic}`" if topic else "`tiered-uploader resume`"
        yield UnsafeReason(
            "paused", f"uploads of {topic or 'all topics'} are paused{why}", pause.since_ms, command, topic
        )


def reasons_of(document: Mapping[str, Any]) -> list[UnsafeReason]:
    """Return the reasons, in an uploader's report, why it does not upload records. Pauses are not among them."""
    found = [
        UnsafeReason("damaged", each["reason"], -1, each["unblocks"], each["topic"], each["partition"])
        for each in document["out_of_service"]
    ]
    if (unread := document["unread"]) is not None:
        found.append(
            UnsafeReason("unreadable", f"the log directory cannot be read: {unread['reason']}", -1, unread["unblocks"])
        )
    limit = document["lag_limit_seconds"]
    for line in document["partitions"]:
        if (reason := _wait_reason(line)) is not None:
            found.append(reason)
        elif line["lag_seconds"] > limit:
            found.append(late(line["topic"], line["partition"], int(1000 * line["lag_seconds"]), document["now_ms"]))
    if (request := document["store"]["oldest_request"])["overdue"]:
        since_ms = document["now_ms"] - int(1000 * request["seconds"])
        found.append(
            UnsafeReason("silent", f"a request ({request['op']}) has no answer", since_ms, "an answer of the store")
        )
    disk = document.get("disk")
    if disk is not None and disk["used_percent"] >= disk["warn_percent"]:
        text = f"the disk is {disk['used_percent']} % full, {human_bytes(disk['free_bytes'])} are free"
        hint = "a larger disk, or local.retention.ms or .bytes once the data is in the bucket"
        found.append(UnsafeReason("disk_low", text, -1, hint))
    return found


def late(topic: str, partition: int, lag_ms: int, now_ms: int) -> UnsafeReason:
    """Return the reason for a partition whose oldest sealed record has been waiting longer than the lag limit."""
    text = f"{topic}-{partition}: the oldest sealed record waits for {human_duration(lag_ms)}"
    return UnsafeReason("behind", text, now_ms - lag_ms, "a faster store, or more --uploads", topic, partition)


def _wait_reason(line: Mapping[str, Any]) -> UnsafeReason | None:
    waiting = line["waiting"]
    if waiting is None or waiting["code"] in _WORK or waiting["code"] == "paused":
        return None
    code = waiting["code"]
    code = "damaged" if code in _DAMAGE else _OF_WAITS.get(code, "failed")
    name = f"{line['topic']}-{line['partition']}"
    return UnsafeReason(
        code, f"{name}: {waiting['reason']}", waiting["since_ms"], waiting["unblocks"], line["topic"], line["partition"]
    )


def fetch(address: str, path: str) -> bytes:
    """Return the answer of the daemon at ``address``. Raises OSError or HTTPException if there is none."""
    connection = http.client.HTTPConnection(address, timeout=QUERY_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().read(MAX_STATUS_BYTES)
    finally:
        connection.close()


def query(address: str) -> dict[str, Any]:
    """Return the report of the daemon at this address.

    Raises RemoteUnavailableError if there is no answer, CorruptionError if another program answers.
    """
    where = f"http://{address}/status"
    try:
        document = json.loads(fetch(address, "/status"))
    except (OSError, http.client.HTTPException) as error:
        raise RemoteUnavailableError(
            f"the uploader does not answer at {where} within {QUERY_SECONDS:g} s: {error}",
            hint="read its log; you can kill -9 it and start it again without loss",
        ) from error
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("message_type") != "status":
        raise CorruptionError(
            f"{where} is not the status of a tiered-uploader",
            hint="correct the address: another program listens there",
        )
    return document


def wait_line(line: Mapping[str, Any], now_ms: int, pause: Pause | None = None) -> Iterator[str]:
    """Yield a line of ``status`` that says why a partition's upload waits, if it does.

    ``line``: the partition's part of the uploader's report. ``pause``: a pause of which the uploader may not know yet.
    """
    waiting = line["waiting"]
    if waiting and pause is not None and waiting["code"] in ("seal", "pool"):
        yield f"  waits    paused: {pause}"
    elif waiting:
        since = f" since {_age(now_ms - waiting['since_ms'])}" if waiting["since_ms"] >= 0 else ""
        until = f"; unblocked by {waiting['unblocks']}" if waiting["code"] in _WORK else ""
        yield f"  waits    {waiting['code']}{since}: {waiting['reason']}{until}"


def talk(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the uploader's maintenance, from its report."""
    now_ms = document["now_ms"]
    found = document.get("maintenance")
    if found is None:
        return
    done = ", ".join(f"{count} {kind}" for kind, count in found["actions"].items()) or "nothing had to be done"
    now = f"at {found['doing']}" if found["doing"] else "rests"
    ended = f", the last {_age(now_ms - found['ended_ms'])} ago" if found["ended_ms"] else ""
    yield f"maintenance {now}; rounds: {found['rounds']}{ended}; {done}"
    if found["paused"]:
        yield f"maintenance of {', '.join(found['paused'])} is paused; unblocked by `tiered-uploader resume`"
    for each in found["failed"]:
        name = f"{each['topic']}-{each['partition']}: " if "topic" in each else ""
        yield f"maintenance failed: {name}{each['reason']}" + (f"; {each['unblocks']}" if each["unblocks"] else "")


def verdict(reasons: Sequence[UnsafeReason], only_here: int, records: str) -> str:
    """Return the first line of ``status``: ``safe``, or ``NOT SAFE`` with the worst reason.

    ``only_here``: number of records only on this disk. ``records``: the same number as text, such as "7 records".
    """
    if not reasons:
        return "safe"
    first = worst(reasons)
    since = f" since {format_time(first.since_ms)}" if first.since_ms >= 0 else ""
    only = f", {records} on this disk only" if only_here else ""
    more = f" (and {len(reasons) - 1} more below)" if len(reasons) > 1 else ""
    text = "" if first.text == CODES[first.code] else f": {first.text}"
    return f"NOT SAFE: {CODES[first.code]}{since}{only}{text}{more}"


def worst(reasons: Sequence[UnsafeReason]) -> UnsafeReason:
    """Return the most severe reason, which the first line of ``status`` has."""
    order = list(CODES)
    return min(reasons, key=lambda reason: order.index(reason.code))


def _age(duration_ms: int) -> str:
    """Return ``3m08s``, and ``0s`` for a time ahead of this clock."""
    return human_duration(max(0, duration_ms))
