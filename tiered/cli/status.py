"""``tiered status``: where every partition stands; the first thing that anybody looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tiered.config import LogConfig
from tiered.errors import (
    ConfigError,
    CorruptionError,
    NotFoundError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.keys import topic_key
from tiered.local.directory.figures import read_report
from tiered.local.disk.files import PosixFiles
from tiered.program.application import Application, Command, pass_application
from tiered.program.doors import directory_error
from tiered.program.output import counted, human_bytes, human_duration
from tiered.program.partition_status import PartitionStatus, deleting_told, gather, lock_holders
from tiered.program.tiers import Tiers, as_fields, open_tiers
from tiered.times import format_time

EXIT_UNHEALTHY = 3

OUT_OF_SERVICE = "out of service"
GONE_MEANWHILE = "its directory left the disk during this look"


@click.command("status", cls=Command)
@pass_application
def command(app: Application) -> int:
    """Positions, segments, lag and health of every partition.

    It takes no lock: writers and uploaders go on beside it, and it needs none of them. Exit code 0: healthy; 3:
    something needs a look; 10: the log directory is lost (the remote part is printed); 13: the bucket does not hold
    what it did, a topic's entry in it is damaged, or it is another bucket. A bucket that does not answer (75), does
    not exist (10) or refuses (12) hides only its own part: the local one is printed.

    \b
    Examples:
      tiered status --log-dir data --remote s3://acme-logs/prod
      tiered status --log-dir data --json
    """
    app.need_a_tier()
    lost = directory_error(app)
    if lost is not None and (app.remote is None or not isinstance(lost, NotFoundError)):
        raise lost
    unreadable: dict[str, TieredError] = {}
    entries, unreachable, tiered_log = _look(app, unreadable, with_local=lost is None)
    now_ms = app.clock.now_ms()
    directory = _directory(app.log_dir) if app.log_dir is not None and lost is None else None
    problems = [f"{entry.tp}: {problem}" for entry in entries for problem in entry.problems]
    problems += [f"{topic_key(name)} cannot be read: {error}" for name, error in unreadable.items()]
    if directory is not None:
        problems += directory["problems"]
    code = EXIT_UNHEALTHY if problems else 0
    damages = [entry.lost for entry in entries] + [e for e in unreadable.values() if isinstance(e, CorruptionError)]
    if any(damage is not None for damage in damages):
        code = CorruptionError.exit_code
    if lost is not None:
        problems.append(f"{lost.message}; {lost.hint}")
    if unreachable is not None:
        problems.append(_why_unreachable(unreachable))
    for error in (lost, unreachable):
        code = code if error is None else error.exit_code
    notes = _notes(entries, directory) if tiered_log else []
    fields = {
        "now_ms": now_ms,
        "log_dir": directory,
        "remote_url": app.remote,
        "partitions": [entry.as_json() for entry in entries],
        "unreadable": as_fields(unreadable),
        "healthy": not problems,
        "problems": problems,
        "notes": notes,
    }
    lines = [line for entry in entries for line in _lines(entry, now_ms, local=directory is not None)]
    if directory is not None:
        lines.append(_directory_line(directory, now_ms))
    lines += notes + [f"problem: {problem}" for problem in problems] or ["OK"]
    return app.out.result("status", fields, lines, code)


def _look(
    app: Application, unreadable: dict[str, TieredError], *, with_local: bool
) -> tuple[list[PartitionStatus], TieredError | None, bool]:
    """Every partition, why the bucket's part is left out if it is, whether the log has a bucket."""
    unreachable: TieredError | None
    try:
        with open_tiers(app, with_local=with_local) as tiers:
            entries, unreachable = _gather(tiers, unreadable)
            uploads = tiers.local is not None and bool(tiers.local.uploads.read())
    except NotFoundError as cause:  # the folder of a file:// store, as when it is not mounted
        if app.remote is None or app.log_dir is None or not with_local:
            raise
        with open_tiers(app, with_remote=False) as tiers:
            return gather(tiers), cause, True
    return entries, unreachable, app.remote is not None or uploads


def _gather(tiers: Tiers, unreadable: dict[str, TieredError]) -> tuple[list[PartitionStatus], TieredError | None]:
    """Every partition; over the local tier alone, and why, if the bucket does not answer, is absent or refuses."""
    try:
        return gather(tiers, unreadable), None
    except (RemoteUnavailableError, RemotePermissionError, NotFoundError, ConfigError) as cause:
        if tiers.local is None:
            raise
        return gather(Tiers(tiers.local, None)), cause


def _why_unreachable(cause: TieredError) -> str:
    if isinstance(cause, RemoteUnavailableError):  # it is tried again later, there is nothing to correct
        return f"the bucket cannot be reached: {cause.message}"
    return f"the bucket cannot be read: {cause.message}; {cause.hint}"


def _notes(entries: list[PartitionStatus], directory: dict[str, Any] | None) -> list[str]:
    """What is no damage but not "OK" either: topics that are being deleted, and records that wait for an uploader that
    nobody has started.
    """
    notes = []
    for topic in sorted({entry.tp.topic for entry in entries if entry.deleting}):
        of_topic = [entry for entry in entries if entry.tp.topic == topic]
        left = sum(entry.only_here for entry in of_topic)
        alone = f"; {counted(left, 'record')} only on this disk, and no uploader takes any more of it" if left else ""
        notes.append(f"{topic}: {deleting_told(of_topic)}: a maintainer takes it from the bucket{alone}")
    waiting = sum(entry.only_here for entry in entries if not (entry.fenced or entry.deleting))
    if waiting and directory is not None and "uploader" not in directory["locks"]:
        notes.append(f"{counted(waiting, 'record')} only on this disk; no uploader runs: start tiered-uploader")
    return notes


def _lines(status: PartitionStatus, now_ms: int, *, local: bool) -> list[str]:
    if local and status.positions is None and status.pinned is None:
        return [f"{status.tp}   {OUT_OF_SERVICE if status.problems else status.elsewhere or GONE_MEANWHILE}"]
    flushed = f"   flushed {status.positions.flushed_offset:,}" if status.positions is not None else ""
    if status.fenced and status.positions is not None:
        ends = f"end {status.positions.end_offset:,}{flushed}   uploaded {status.committed_offset:,}"
        lag = f"{counted(status.only_here, 'record')} only here"
    else:
        ends = f"end {status.end_offset:,}{flushed}   uploaded {status.uploaded_offset:,}"
        lag = "of this disk alone" if status.internal else f"lag {counted(status.lag, 'record')}"
    lines = [f"{status.tp}   {ends}   {lag}{f'   {told}' if (told := deleting_told([status])) else ''}"]
    if status.positions is not None:
        lines.append(
            f"  local    {counted(status.local_segments, 'segment')}, {human_bytes(status.local_bytes)}"
            f" (active {human_bytes(status.active_bytes)}), from offset {status.positions.local_start_offset:,}"
            f"{'   FENCED' if status.fenced else ''}"
        )
    elif status.unreadable is not None:
        lines.append(f"  local    {OUT_OF_SERVICE}")
    pinned = status.pinned
    if pinned is not None:
        root, times = pinned.root, ""
        if status.times is not None:
            first, last = status.times
            times = f", {format_time(first)} .. {format_time(last)}"
        lines.append(
            f"  remote   {counted(pinned.segments, 'segment')}, {human_bytes(pinned.size_bytes)}{times},"
            f" to offset {root.next_offset:,},"
            f" last commit {human_duration(max(0, now_ms - root.commit.ts_ms))} ago"
            f" (version {root.version}, claim {root.writer.epoch} of {root.writer.owner or 'nobody'})"
        )
    return lines


def _directory(directory: Path) -> dict[str, Any]:
    space = PosixFiles().space(directory)
    reserve = LogConfig().reserve_bytes(space.total)
    problems = []
    if space.free < reserve:
        problems.append(f"the disk has {human_bytes(space.free)} left, less than the reserve of {human_bytes(reserve)}")
    problems += read_report(directory, PosixFiles()).problems
    holders = {
        role: {"pid": holder.pid, "host": holder.host, "program": holder.program, "since_ms": holder.since_ms}
        for role, holder in lock_holders(directory).items()
    }
    return {
        "path": str(directory),
        "free_bytes": space.free,
        "total_bytes": space.total,
        "locks": holders,
        "problems": problems,
    }


def _directory_line(directory: dict[str, Any], now_ms: int) -> str:
    held = "; ".join(
        f"{role} {lock['program']} (pid {lock['pid']} on {lock['host']})"
        f" for {human_duration(max(0, now_ms - lock['since_ms']))}"
        for role, lock in directory["locks"].items()
    )
    free, total = human_bytes(directory["free_bytes"]), human_bytes(directory["total_bytes"])
    return f"disk {free} free of {total}; {held or 'nobody writes or uploads'}"
