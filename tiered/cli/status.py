"""``tiered status``: print whether the records of a log are safe, and the state of every partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
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
    UnknownTopicError,
)
from tiered.format.coordinator_records import OFFSETS_TOPIC
from tiered.format.keys import topic_key
from tiered.group.admin import load_all_lags
from tiered.local.directory.figures import read_report
from tiered.local.disk.directory_files import StandbyMark, read_standby
from tiered.local.disk.files import PosixFiles
from tiered.local.transactions.group_positions import GroupLag, GroupTable
from tiered.plan.pacing import ALL_TOPICS
from tiered.program.application import Application, Command, pass_application
from tiered.program.open_log import Tiers, as_fields, open_tiers
from tiered.program.open_reader import directory_error
from tiered.program.output import Problem, columns, counted, fitted, human_bytes, human_duration
from tiered.program.partition_status import PartitionStatus, deleting_text, gather, lock_holders
from tiered.program.uploader_status import (
    UnsafeReason,
    UploaderStatus,
    ask_uploader,
    late,
    talk,
    verdict,
    wait_line,
    worst,
)
from tiered.remote.topics import no_topics
from tiered.times import format_time

EXIT_UNSAFE = 3

READ_BYTES = 256 * 1024 * 1024
"""Most bytes of the next segments to upload that are read, to find damage."""

OUT_OF_SERVICE = "out of service"


@click.command("status", cls=Command, exits={0: "safe", 3: "not safe", 13: "the bucket lost or damaged something"})
@click.argument("topic", required=False)
@pass_application
def command(app: Application, topic: str | None) -> int:
    """Print whether the records are safe, and where they are.

    The first line is "safe", or "NOT SAFE:" and why: uploads that are refused, fail, are paused, hang or are behind;
    records that wait while no uploader runs; a fenced or damaged partition; a disk that is nearly full; a log directory
    or a bucket that is gone. --json has the same as safe, verdict, reason (a stable word) and reasons. With -v the
    background tasks of the log directory are listed.

    The command reads the disk and the bucket, and asks the uploader of the log directory. It takes no lock. What can be
    read is printed also when the log directory or the bucket is lost.

    \b
    Examples:
      tiered status --log-dir data --remote s3://acme-logs/prod
      tiered status flights --log-dir data --json
    """
    app.need_a_tier()
    lost = directory_error(app)
    if isinstance(lost, ConfigError):
        raise lost
    seen = StatusReport(app, topic, lost)
    if lost is None or app.remote is not None:
        seen.read()
    if app.log_dir is not None and lost is None:
        seen.directory = _directory(app.log_dir)
        seen.standby = read_standby(app.log_dir, PosixFiles())
        seen.uploader = ask_uploader(app.log_dir, app.clock)
    reasons, code = seen.reasons(), seen.exit_code()
    code = code or (EXIT_UNSAFE if reasons else 0)
    only_here = sum(entry.only_here for entry in seen.entries)
    first = verdict(reasons, only_here, counted(only_here, "record"))
    notes = seen.notes()
    text = fitted([first, *seen.lines(reasons, notes)])
    return app.out.result("status", seen.fields(reasons, first, notes), text, code)


@dataclass(slots=True)
class StatusReport:
    """State of a log for ``tiered status``. ``lost``: why the log directory is unreadable.

    ``unreachable``: why the bucket cannot be read. ``is_tiered``: True if its records should be uploaded. ``standby``:
    the mark of a standby, with the bucket that it follows.
    """

    app: Application
    topic: str | None
    lost: TieredError | None
    entries: list[PartitionStatus] = field(default_factory=list)
    groups: list[GroupLag] = field(default_factory=list)
    unreadable: dict[str, TieredError] = field(default_factory=dict)
    unreachable: TieredError | None = None
    is_tiered: bool = False
    directory: dict[str, Any] | None = None
    uploader: UploaderStatus = field(default_factory=UploaderStatus)
    standby: StandbyMark | None = None

    def read(self) -> None:
        """Read the state of every partition, only from the disk if the bucket is absent, refuses or does not answer."""
        app, with_local = self.app, self.lost is None
        try:
            with open_tiers(app, with_local=with_local) as tiers:
                self._gather(tiers)
                if app.log_dir is None and tiers.store is not None and not (self.entries or self.unreadable):
                    raise no_topics(tiers.store.url)
                uploads = tiers.local is not None and bool(tiers.local.uploads.read())
                if tiers.local is not None:
                    self.groups = GroupTable(tiers.local).lags(app.clock.now_ms())
                if tiers.store is not None and self.unreachable is None:
                    self._add_groups(tiers)
        except NotFoundError as cause:  # the folder of a file:// store, as when it is not mounted
            if app.remote is None or app.log_dir is None or not with_local:
                raise
            with open_tiers(app, with_remote=False) as tiers:
                self.entries, self.unreachable, uploads = gather(tiers, topic=self.topic), cause, True
        self.is_tiered = app.remote is not None or uploads

    def _add_groups(self, tiers: Tiers) -> None:
        """Add the lags of the bucket's groups. Only some roles may list them."""
        try:
            self.groups += tiers.run(load_all_lags())
        except TieredError as error:
            self.app.out.warn(f"the groups of the bucket cannot be read: {error.message}")

    def _gather(self, tiers: Tiers) -> None:
        try:
            self.entries = gather(tiers, self.unreadable, self.topic, read_bytes=READ_BYTES)
        except (RemoteUnavailableError, RemotePermissionError, NotFoundError, ConfigError) as cause:
            if tiers.local is None or isinstance(cause, UnknownTopicError):
                raise
            self.entries, self.unreachable = gather(Tiers(tiers.local, None), topic=self.topic), cause

    def reasons(self) -> list[UnsafeReason]:
        """Return the reasons why the log is not safe. One that both disk and uploader report is returned once."""
        found = [reason for entry in self.entries for reason in entry.named_reasons]
        found += [
            UnsafeReason("damaged", f"{topic_key(name)} cannot be read: {error}", topic=name)
            for name, error in self.unreadable.items()
        ]
        if self.directory is not None:
            found += self.directory["reasons"]
            found += self._upload_reasons()
        if self.lost is not None:
            found.append(UnsafeReason("directory_gone", f"{self.lost.message}; {self.lost.hint}"))
        if self.unreachable is not None:
            found.append(_why_unreachable(self.unreachable))
        known = set()
        for reason in list(found):
            key = (reason.code, reason.topic, reason.partition)
            if (key in known and reason.topic) or (self.topic and reason.topic not in ("", self.topic)):
                found.remove(reason)
            known.add(key)
        return found

    def _upload_reasons(self) -> Iterator[UnsafeReason]:
        waiting = sum(entry.only_here for entry in self.entries if not (entry.fenced or entry.deleting))
        if not self.is_tiered and not self.uploader.running:
            return
        yield from self.uploader.reasons
        if waiting and not self.uploader.running:
            yield UnsafeReason(
                "stopped", "no uploader runs", unblocks="`tiered-uploader run`, or `tiered-uploader sync --wait`"
            )
        if self.uploader.document is None and self.uploader.running:  # its own report has the lag
            for entry in self.entries:
                lag_ms = self.app.clock.now_ms() - entry.sealed_since_ms
                if entry.sealed_since_ms >= 0 and entry.only_here and lag_ms > self.uploader.lag_limit_ms:
                    yield late(entry.tp.topic, entry.tp.partition, lag_ms, self.app.clock.now_ms())

    def exit_code(self) -> int:
        """Return an error's exit code if bucket or directory is unreadable or has lost records, otherwise 0."""
        code = 0
        damages = [entry.lost for entry in self.entries] + [
            error for error in self.unreadable.values() if isinstance(error, CorruptionError)
        ]
        if any(damage is not None for damage in damages):
            code = CorruptionError.exit_code
        for error in (self.lost, self.unreachable):
            code = code if error is None else error.exit_code
        return code

    def notes(self) -> list[str]:
        """Return lines about facts that are no problem, such as topics being deleted or a log without a bucket."""
        notes = []
        for topic in sorted({entry.tp.topic for entry in self.entries if entry.deleting}):
            of_topic = [entry for entry in self.entries if entry.tp.topic == topic]
            left = sum(entry.only_here for entry in of_topic)
            alone = (
                f"; {counted(left, 'record')} only on this disk, and no uploader takes any more of it" if left else ""
            )
            notes.append(f"{topic}: {deleting_text(of_topic)}: a maintainer takes it from the bucket{alone}")
        waiting = sum(entry.only_here for entry in self.entries if not (entry.fenced or entry.deleting))
        if waiting and self.is_tiered and self.uploader.running:
            notes.append(f"{counted(waiting, 'record')} only on this disk until the uploader has sent them")
        if waiting and not (self.is_tiered or self.uploader.running):
            notes.append("this log has no bucket: its records are on this disk only")
        if self.uploader.document is not None:
            notes += talk(self.uploader.document)
        if self.standby is not None:
            notes.append(_standby_line(self.standby, self._late_records(), self.app.clock.now_ms()))
        return notes

    def _late_records(self) -> int | None:
        """Return the number of offsets that the bucket has and a standby lacks; None if the bucket was not read."""
        if self.app.remote is None or self.unreachable is not None:
            return None
        ends = [(entry.pinned, 0 if entry.positions is None else entry.positions.end_offset) for entry in self.entries]
        return sum(max(0, pinned.next_offset - max(end, pinned.start_offset)) for pinned, end in ends if pinned)

    def fields(self, reasons: list[UnsafeReason], first: str, notes: list[str]) -> dict[str, Any]:
        """Return the JSON object for ``--json``. ``first``: the first line of the text."""
        waits, document = self.uploader.waits(), self.uploader.document
        partitions = []
        for entry in self.entries:
            line = waits.get((entry.tp.topic, entry.tp.partition))
            partitions.append({**entry.as_json(), "uploader": line})
        directory = self.directory
        if directory is not None:
            directory = {name: value for name, value in directory.items() if name != "reasons"}
        return {
            "safe": not reasons,
            "verdict": first,
            "reason": worst(reasons).code if reasons else None,
            "reasons": [reason.as_json() for reason in reasons],
            "now_ms": self.app.clock.now_ms(),
            "log_dir": directory,
            "remote_url": self.app.remote,
            "partitions": partitions,
            "standby": None
            if self.standby is None
            else _late(self.standby, self._late_records(), self.app.clock.now_ms()),
            "groups": [
                {
                    "group": lag.group,
                    "topic": lag.tp.topic,
                    "partition": lag.tp.partition,
                    "lag_records": lag.records,
                    "lag_seconds": lag.seconds,
                }
                for lag in self.groups
            ],
            "uploader": {
                "running": self.uploader.running or None,
                "report": None
                if document is None
                else {name: value for name, value in document.items() if name not in ("partitions", "message_type")},
                "paused": [
                    {"topic": name or None, "since_ms": each.since_ms, "reason": each.reason}
                    for name, each in sorted(self.uploader.pauses.items())
                ],
            },
            "unreadable": as_fields(self.unreadable),
            "problems": [str(reason) for reason in reasons],
            "notes": notes,
        }

    def lines(self, reasons: list[UnsafeReason], notes: list[str]) -> Iterator[str]:
        """Yield the lines of the text after the first one."""
        now_ms, waits = self.app.clock.now_ms(), self.uploader.waits()
        for entry in self.entries:
            if entry.tp.topic == OFFSETS_TOPIC != self.topic and not entry.reasons:
                continue  # its 50 partitions would hide the others; the lines of the groups say what they hold
            yield from _lines(entry, now_ms, local=self.directory is not None)
            line: Mapping[str, Any] | None = waits.get((entry.tp.topic, entry.tp.partition))
            if line is not None:
                pauses = self.uploader.pauses
                yield from wait_line(line, now_ms, pauses.get(entry.tp.topic) or pauses.get(ALL_TOPICS))
        yield from _group_lines(self.groups)
        if self.directory is not None:
            yield _directory_line(self.directory, now_ms)
            if self.app.out.verbosity:
                yield from _task_lines(self.directory)
        yield from notes
        yield from (f"problem: {reason}" for reason in reasons)


def _group_lines(lags: list[GroupLag]) -> Iterator[str]:
    """Yield one line for each group: how many records it has not read, and their age."""
    for group in dict.fromkeys(lag.group for lag in lags):
        of_group = [lag for lag in lags if lag.group == group]
        behind = sum(lag.records for lag in of_group)
        age_ms = int(1000 * max((lag.seconds for lag in of_group if lag.records), default=0.0))
        yield f"group {group}   lag {counted(behind, 'record')}{f', {human_duration(age_ms)}' if behind else ''}"


def _why_unreachable(cause: TieredError) -> UnsafeReason:
    if isinstance(cause, RemoteUnavailableError):  # it is tried again later, there is nothing to correct
        return UnsafeReason("bucket", f"the bucket cannot be reached: {cause.message}")
    return UnsafeReason("bucket", f"the bucket cannot be read: {cause.message}", unblocks=cause.hint)


def _lines(status: PartitionStatus, now_ms: int, *, local: bool) -> list[str]:
    if local and status.positions is None and status.pinned is None:
        return [f"{status.tp}   {OUT_OF_SERVICE if status.reasons else 'not on this disk'}"]
    flushed = f"   flushed {status.positions.flushed_offset:,}" if status.positions is not None else ""
    if status.fenced and status.positions is not None:
        ends = f"end {status.positions.end_offset:,}{flushed}   uploaded {status.committed_offset:,}"
        lag = f"{counted(status.only_here, 'record')} only here"
    else:
        ends = f"end {status.end_offset:,}{flushed}   uploaded {status.uploaded_offset:,}"
        lag = "of this disk alone" if status.internal else f"lag {counted(status.lag, 'record')}"
    lines = [f"{status.tp}   {ends}   {lag}{f'   {deleting}' if (deleting := deleting_text([status])) else ''}"]
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
            f" (version {root.version}, claim {root.writer.epoch} of {root.writer.owner or 'none'})"
        )
    return lines


def _directory(directory: Path) -> dict[str, Any]:
    space = PosixFiles().space(directory)
    reasons = []
    if space is not None and space.free < (reserve := LogConfig().reserve_bytes(space.total)):
        text = f"the disk has {human_bytes(space.free)} left, less than the reserve of {human_bytes(reserve)}"
        reasons.append(UnsafeReason("disk_low", text))
    report = read_report(directory, PosixFiles())
    reasons += [UnsafeReason("problem", text) for text in report.problems]
    holders = {
        role: {"pid": holder.pid, "host": holder.host, "program": holder.program, "since_ms": holder.since_ms}
        for role, holder in lock_holders(directory).items()
    }
    return {
        "path": str(directory),
        "free_bytes": None if space is None else space.free,
        "total_bytes": None if space is None else space.total,
        "locks": holders,
        "problems": [reason.text for reason in reasons],
        "reasons": reasons,
        "tasks_noted_ms": report.noted_ms,
        "tasks": [asdict(task) for task in report.tasks],
    }


def _late(mark: StandbyMark, records: int | None, now_ms: int) -> dict[str, Any]:
    """Return as JSON how late a standby is. ``records``: offsets that it lacks, None if the bucket was not read."""
    since_ms = 0 if records == 0 else max(0, now_ms - mark.pulled_ms)
    return {
        "remote": mark.remote,
        "pulled_ms": mark.pulled_ms or None,
        "late_records": records,
        "late_seconds": since_ms / 1000 if mark.pulled_ms else None,
    }


def _standby_line(mark: StandbyMark, records: int | None, now_ms: int) -> str:
    if not mark.pulled_ms:
        return f"standby of {mark.remote}: no pull was whole yet"
    ago = human_duration(max(0, now_ms - mark.pulled_ms))
    if records is None:
        return f"standby of {mark.remote}: at most {ago} late, its newest pull"
    return f"standby of {mark.remote}: {counted(records, 'record')}{f' and at most {ago}' if records else ''} late"


def _task_lines(directory: dict[str, Any]) -> list[str]:
    """Return a table of the background tasks, as the last writer noted them."""
    rows = [
        [
            task["name"],
            human_duration(task["period_ms"]) if task["period_ms"] else "tick",
            format_time(task["last_run_ms"]),
            task["runs"],
            task["failures"],
            Problem(task["last_error"]) if task["last_error"] else "-",
        ]
        for task in directory["tasks"]
    ]
    return columns(["task", "every", "last run", "runs", "failures", "last error"], rows) if rows else []


def _directory_line(directory: dict[str, Any], now_ms: int) -> str:
    held = "; ".join(
        f"{role} {lock['program']} (pid {lock['pid']} on {lock['host']})"
        f" for {human_duration(max(0, now_ms - lock['since_ms']))}"
        for role, lock in directory["locks"].items()
    )
    disk = "disk of unknown size"
    if directory["total_bytes"] is not None:
        disk = f"disk {human_bytes(directory['free_bytes'])} free of {human_bytes(directory['total_bytes'])}"
    return f"{disk}; {held or 'no writer and no uploader'}"
