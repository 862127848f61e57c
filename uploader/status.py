"""``status``: one line per partition, as text and as JSON from the same data; live over HTTP, else from the disk."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from tiered.errors import CorruptionError, FencedError, RemoteUnavailableError, TieredError
from tiered.model import TopicPartition
from tiered.plan.tiering.pauses import Pause
from tiered.plan.tiering.waits import PartitionView, Waiting
from tiered.program.output import human_bytes, human_duration
from tiered.store.limit import Limits

QUERY_SECONDS = 5.0
MAX_STATUS_BYTES = 64 * 1024 * 1024
UNKNOWN_MS = -1
"""``since_ms`` where the disk alone does not tell."""

COLUMNS = ("partition", "end", "flushed", "uploaded", "lag", "age", "oldest", "waiting for")


def report(
    views: Sequence[PartitionView],
    *,
    now_ms: int,
    remote: str,
    live: bool,
    unreadable: Mapping[TopicPartition, TieredError] | None = None,
    unread: TieredError | None = None,
    running: str = "",
    pauses: Mapping[str, Pause] | None = None,
) -> dict[str, Any]:
    """The document that ``/status`` serves and ``status --json`` prints; ``unreadable``: partitions out of service;
    ``unread``: why the log directory as a whole could not be read at the last look: all else is of the look before.

    ``running``: the uploader that holds the directory's lock, and serves no status or does not answer.
    """
    return {
        "message_type": "status",
        "now_ms": now_ms,
        "live": live,
        "uploader": running,
        "remote": remote,
        "lag_bytes": sum(view.lag_bytes for view in views),
        "lag_seconds": max((view.lag_ms for view in views), default=0) / 1000,
        "fenced": sum(view.phase == "fenced" for view in views),
        "paused": pauses_as_json(pauses or {}),
        "partitions": [view.as_json() for view in views],
        "out_of_service": [
            {"topic": tp.topic, "partition": tp.partition, "reason": error.message, "unblocks": error.hint}
            for tp, error in sorted((unreadable or {}).items())
        ],
        "unread": None if unread is None else {"reason": unread.message, "unblocks": unread.hint},
    }


def pauses_as_json(pauses: Mapping[str, Pause]) -> list[dict[str, Any]]:
    """By topic; None stands for all of them."""
    return [
        {"topic": name or None, "since_ms": each.since_ms, "reason": each.reason}
        for name, each in sorted(pauses.items())
    ]


def paused_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """One for each topic whose uploads are paused."""
    for each in document.get("paused", ()):  # an older daemon does not tell
        name, why = each["topic"] or "all topics", f": {each['reason']}" if each["reason"] else ""
        since = _age((document["now_ms"] - each["since_ms"]) / 1000)
        command = f"tiered-uploader resume {each['topic'] or ''}".strip()
        yield f"uploads of {name} have been paused for {since}{why}; unblocked by `{command}`"


def store(limits: Limits, now_ms: int) -> dict[str, Any]:
    """The object ``store`` of the document: what the store is asked at most, and where it asked for less."""
    now = limits.clock.monotonic()
    return {
        "requests_per_second": limits.requests_per_second,
        "bytes_per_second": limits.bytes_per_second,
        "memory": {
            "limit_bytes": limits.memory.count,
            "held_bytes": limits.memory.taken,
            "waiting": limits.memory.waiting,
        },
        "slow_downs": limits.paces.slow_downs,
        "slowed": [
            {
                "prefix": each.prefix,
                "requests_per_second": round(each.per_second, 1),
                "since_ms": now_ms - int((now - each.since) * 1000),
            }
            for each in limits.paces.slowed(now)
        ],
    }


def offline(
    views: Sequence[PartitionView], lost: Set[TopicPartition], now_ms: int, *, running: str = ""
) -> list[PartitionView]:
    """What the disk tells when no uploader can be asked: who is behind waits for one, or for a repair.

    ``running``: the one that holds the directory's lock; empty: nobody does.
    """
    found = []
    for view in views:
        waiting = None
        since_ms = now_ms - view.oldest_unuploaded_ms if view.oldest_unuploaded_ms else UNKNOWN_MS
        if view.tp in lost:
            reason = "a newer claim owns the partition"
            waiting = Waiting("fenced", reason, UNKNOWN_MS, "`tiered repair rejoin` makes this log a fresh volume")
        elif view.uploaded_offset < view.end_offset:
            waiting = Waiting("stopped", "no uploader is running", since_ms, "tiered-uploader run, or sync --wait")
            if running:
                waiting = Waiting(
                    "upload", f"the uploader that runs ({running})", since_ms, "its log says what it does"
                )
        phase = "fenced" if view.tp in lost else view.phase
        found.append(replace(view, waiting=waiting, phase=phase))
    return found


def query(host: str, port: int) -> dict[str, Any]:
    """The report of a running daemon. Raises RemoteUnavailableError if none answers there."""
    connection = http.client.HTTPConnection(host, port, timeout=QUERY_SECONDS)
    try:
        connection.request("GET", "/status")
        answer = connection.getresponse()
        data = answer.read(MAX_STATUS_BYTES)
        if answer.status != http.HTTPStatus.OK:
            raise RemoteUnavailableError(f"http://{host}:{port}/status answered {answer.status}")
        document = json.loads(data)
    except (OSError, http.client.HTTPException) as error:
        raise RemoteUnavailableError(
            f"no uploader answers at http://{host}:{port}: {error}", hint="is it running, with this --http address?"
        ) from error
    except ValueError as error:
        raise CorruptionError(
            f"http://{host}:{port}/status is not JSON", hint="another program listens there"
        ) from error
    finally:
        connection.close()
    if not isinstance(document, dict):
        raise CorruptionError(f"http://{host}:{port}/status is not ours", hint="another program listens there")
    return document


def table(document: Mapping[str, Any]) -> str:
    """Aligned text: the figures of each partition, below it what it waits for and what would unblock it."""
    rows: list[Sequence[str]] = [COLUMNS]
    notes: list[str] = []
    for line in document["partitions"]:
        name = f"{line['topic']}-{line['partition']}"
        waiting = line["waiting"]
        rows.append(
            (
                name,
                f"{line['end_offset']:,}",
                f"{line['flushed_offset']:,}",
                f"{line['uploaded_offset']:,}",
                human_bytes(line["lag_bytes"]),
                _age(line["lag_seconds"]),
                _age(line["oldest_unuploaded_seconds"]),
                waiting["code"] if waiting else "nothing",
            )
        )
        if waiting:
            known = waiting["since_ms"] != UNKNOWN_MS
            since = f" since {_age((document['now_ms'] - waiting['since_ms']) / 1000)}" if known else ""
            notes.append(f"{name} waits{since}: {waiting['reason']}; unblocked by {waiting['unblocks']}")
    notes += [f"problem: {each['reason']}; unblocked by: {each['unblocks']}" for each in _out_of_service(document)]
    if (unread := document.get("unread")) is not None:  # an older daemon does not tell
        notes.append(
            f"the log directory cannot be read, this is what was seen before: {unread['reason']}; unblocked by: "
            f"{unread['unblocks']}"
        )
    notes += _disk_low(document)
    notes += paused_lines(document)
    notes += _slowed(document)
    notes += _maintenance(document)
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    text = [
        "  ".join(
            cell.ljust(width) if i in (0, 7) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    total = f"{len(rows) - 1} partitions, lag {human_bytes(document['lag_bytes'])}, {_age(document['lag_seconds'])}"
    holder = document.get("uploader", "")
    runs = f"an uploader runs and serves no status: {holder}" if holder else "no uploader is running"
    source = "" if document["live"] else f" ({runs}; read from the disk)"
    return "\n".join([*text, *notes, f"{total}, remote {document['remote'] or '-'}{source}"])


def _disk_low(document: Mapping[str, Any]) -> Iterator[str]:
    disk = document.get("disk")
    if disk is not None and disk["used_percent"] >= disk["warn_percent"]:
        yield (
            f"the disk is {disk['used_percent']} % full, {human_bytes(disk['free_bytes'])} are free; appends stop at "
            "the reserve; unblocked by a larger disk, or by local.retention.ms or .bytes once the data is in the bucket"
        )


def _slowed(document: Mapping[str, Any]) -> Iterator[str]:
    for each in document.get("store", {}).get("slowed", ()):
        since = _age((document["now_ms"] - each["since_ms"]) / 1000)
        yield (
            f"the store asked to slow down since {since}: {each['requests_per_second']} requests a second below "
            f"{each['prefix']}/; unblocked by itself, the rate rises while nothing is refused"
        )


def _maintenance(document: Mapping[str, Any]) -> Iterator[str]:
    found = document.get("maintenance")
    if found is None:
        return
    done = ", ".join(f"{count} {kind}" for kind, count in found["actions"].items()) or "nothing had to be done"
    now = f"at {found['doing']}" if found["doing"] else "rests"
    ended = f", the last {_age((document['now_ms'] - found['ended_ms']) / 1000)} ago" if found["ended_ms"] else ""
    yield f"maintenance {now}; rounds: {found['rounds']}{ended}; {done}"
    if found.get("paused"):  # an older daemon does not tell
        yield f"maintenance of {', '.join(found['paused'])} is paused; unblocked by `tiered-uploader resume`"
    for each in found["failed"]:
        name = f"{each['topic']}-{each['partition']}: " if "topic" in each else ""
        yield f"maintenance failed: {name}{each['reason']}" + (f"; {each['unblocks']}" if each["unblocks"] else "")


def _age(seconds: float) -> str:
    """``3m08s``; none for a time of a clock that is ahead of ours."""
    return human_duration(max(0, int(seconds * 1000)))


def _out_of_service(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(document.get("out_of_service", ()))  # an older daemon does not tell


def fenced(document: Mapping[str, Any]) -> FencedError | None:
    """The partitions that a newer claim owns, as the error that they are."""
    lines = [line for line in document["partitions"] if line["phase"] == "fenced"]
    if not lines:
        return None
    names = ", ".join(f"{line['topic']}-{line['partition']}" for line in lines)
    hint = next((line["waiting"]["unblocks"] for line in lines if line["waiting"]), "")
    return FencedError(f"a newer claim owns {names}", hint=hint)


def is_behind(document: Mapping[str, Any]) -> TieredError | None:
    """Why a probe with ``status -q`` fails: a partition is fenced or needs somebody, or nobody knows what there is."""
    if (error := fenced(document)) is not None:
        return error
    if (unread := document.get("unread")) is not None:
        return TieredError(f"the log directory cannot be read: {unread['reason']}", hint=unread["unblocks"])
    for each in _out_of_service(document):
        return CorruptionError(each["reason"], hint=each["unblocks"])
    for line in document["partitions"]:
        waiting = line["waiting"]
        if waiting and waiting["code"] not in {"", "seal", "upload", "commit", "pool", "claim", "topic", "cancel"}:
            name = f"{line['topic']}-{line['partition']}"
            return TieredError(f"{name}: {waiting['reason']}", hint=waiting["unblocks"])
    return None
