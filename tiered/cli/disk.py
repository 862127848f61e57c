"""Commands ``tiered disk``: compact, shrink, move and truncate the partitions of a log directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tiered.arguments import chosen_partitions
from tiered.check.check import EXIT_WARNINGS
from tiered.check.segment_check import judge_log
from tiered.config import MAX_LONG
from tiered.errors import ConfigError, CorruptionError, DiskFullError, LockedError
from tiered.format.keys import FLAG_HOLE
from tiered.local.cleaning.subjects import CleanerCheckpoint, CleaningStatus, preview
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import uploader_lock
from tiered.local.partition.read_log import ReadLog
from tiered.local.segment.replacement import cut_end
from tiered.model import Positions, TopicPartition
from tiered.plan.batch_filter import CleaningReport
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.program.application import (
    Application,
    Group,
    confirm,
    one_partition,
    pass_application,
    split_topic,
)
from tiered.program.open_log import Tiers, TopicFacts, open_directory, open_tiers, open_view, refuse_internal
from tiered.program.open_reader import folder, need_topic
from tiered.program.output import columns, counted, human_bytes
from tiered.program.places import LogPlace, need_one_partition, range_of

MAX_ROUNDS = 1000
"""Most rounds over one partition. More than one is needed only if its keys do not fit into memory."""


@click.group(cls=Group, name="disk")
def command() -> None:
    """Compact, drop, move and truncate partitions on this disk."""


@command.command("compact")
@click.argument("selected", required=False, metavar="[TOPIC[:P]]")
@pass_application
def compact(app: Application, *, selected: str | None) -> int:
    """Compact partitions now, however little of them is dirty. The newest record of every key stays.

    Without a name all compacted topics are meant. No program may write to the directory meanwhile; a log that is open
    compacts itself. The bucket is compacted by `tiered maintain`.

    \b
    Examples:
      tiered disk compact --log-dir data --dry-run
      tiered disk compact flights:0 --log-dir data --yes
    """
    plan_only = app.dry_run
    with open_view(app) if plan_only else open_directory(app) as log:
        tps = _partitions(log, selected)
        checkpoint = CleanerCheckpoint(log.directory, log.files)
        found = [preview(log.partition(tp), checkpoint, log.files, app.clock) for tp in tps]
        due = [status for status in found if status.candidate is not None and status.candidate.cleanable_bytes]
        reports: dict[TopicPartition, CleaningReport] = {}
        if due and isinstance(log, LocalLog):
            for line in _table(found):
                app.out.say(line)
            confirm(app, "disk compact", f"Compact {counted(len(due), 'partition')}?")
            reports = {status.tp: _clean(log, status.tp) for status in due}
    fields = {"dry_run": plan_only, "partitions": [_fields(status, reports.get(status.tp)) for status in found]}
    text = _table(found) if plan_only else [_line(tp, report) for tp, report in reports.items()]
    if not plan_only:
        for status in found:
            if status.refused:
                app.out.say(f"{status.tp} is not compacted: {status.refused}")
    if not due:
        app.out.say("there is nothing to compact" if found else "no topic here has cleanup.policy=compact")
    return app.out.result("disk compact", fields, text)


def _partitions(log: LocalLog | LogView, selected: str | None) -> list[TopicPartition]:
    """Return the named partitions; without a name all of compacted topics that are in service."""
    topics = log.topics()
    if selected is None:
        broken = log.out_of_service  # reported at the open
        return [tp for tp in log.partitions() if topics[tp.topic].config.compacted and tp not in broken]
    name, partition = split_topic(selected)
    need_topic(name, topics)
    if not topics[name].config.compacted:
        raise ConfigError(
            f"{name} is not compacted: its cleanup.policy is {topics[name].config.cleanup_policy}",
            hint=f"`tiered topic set {name} cleanup.policy=compact` makes it a compacted topic",
        )
    return [TopicPartition(name, number) for number in chosen_partitions(name, topics[name].partitions, partition)]


def _clean(log: LocalLog, tp: TopicPartition) -> CleaningReport:
    """Run rounds, at most :data:`MAX_ROUNDS`, until no record is left to compact. Return one report over all rounds."""
    total: CleaningReport | None = None
    for _ in range(MAX_ROUNDS):
        report = log.cleaner.clean(tp)
        if report is None:
            break
        if total is None:
            total = report
            continue
        total.end_offset, total.groups = report.end_offset, report.groups
        total.records_written, total.bytes_written = report.records_written, report.bytes_written
    return total or CleaningReport(-1)


def _table(found: list[CleaningStatus]) -> list[str]:
    names = ["partition", "dirty", "from", "to", "size", "segments", "not compacted"]
    rows: list[list[object]] = []
    for status in found:
        candidate = status.candidate
        if candidate is None:
            rows.append([status.tp, *["-"] * 5, status.refused])
            continue
        segments = sum(len(group) for group in status.groups)
        rows.append(
            [
                status.tp,
                f"{candidate.ratio:.0%}",
                candidate.first_dirty,
                candidate.first_uncleanable,
                human_bytes(candidate.cleanable_bytes),
                f"{segments:,} to {len(status.groups):,}",
                "-",
            ]
        )
    return columns(names, rows) if rows else []


def _fields(status: CleaningStatus, report: CleaningReport | None) -> dict[str, Any]:
    candidate = status.candidate
    fields: dict[str, Any] = {"topic": status.tp.topic, "partition": status.tp.partition, "refused": status.refused}
    if candidate is not None:
        fields |= {
            "dirty_ratio": candidate.ratio,
            "first_dirty_offset": candidate.first_dirty,
            "first_uncleanable_offset": candidate.first_uncleanable,
            "dirty_bytes": candidate.cleanable_bytes,
            "clean_bytes": candidate.clean_bytes,
            "groups": [list(group) for group in status.groups],
        }
    if report is not None:
        fields |= {
            "cleaned_end_offset": report.end_offset,
            "records_read": report.records_read,
            "records_kept": report.records_written,
            "bytes_read": report.bytes_read,
            "bytes_kept": report.bytes_written,
        }
    return fields


def _line(tp: TopicPartition, report: CleaningReport) -> str:
    kept, read = report.records_written, report.records_read
    return f"{tp}: {kept:,} of {read:,} records kept, {report.bytes_written:,} of {report.bytes_read:,} bytes"


@command.command("drop", exits={3: "some segments stay: not uploaded yet", 13: "some stay: the bucket lost them"})
@click.argument("selected", metavar="TOPIC[:P]")
@click.option("--to", "end", metavar="WHERE", help="end before this place: an offset, a time or s@TIME")
@pass_application
def drop(app: Application, *, selected: str, end: str | None) -> int:
    """Delete sealed segments from the disk that are in the bucket, regardless of local.retention.*.

    The log stays as it is: those records are read from the bucket. The command reads the catalog and asks for each
    object, and keeps what the bucket lacks. Use it for a full disk, and after `tiered erase`. No program may write to
    the directory meanwhile. Segments go oldest first. With --to the last one is the segment that holds the record
    before that place.

    \b
    Examples:
      tiered disk drop users --log-dir data --remote s3://acme-logs/prod --dry-run
      tiered disk drop users:3 --to 120000 --log-dir data --remote s3://acme-logs/prod --yes
    """
    topic, partition = split_topic(selected)
    _, before = range_of(None, end, app.clock.now_ms())
    with open_view(app) if app.dry_run else open_directory(app) as log:
        need_topic(topic, log.topics())
        numbers = chosen_partitions(topic, log.topics()[topic].partitions, partition)
        need_one_partition(topic, len(numbers), before)
        partitions = [log.partition(TopicPartition(topic, number)) for number in numbers]
        if all(each.upload is None for each in partitions):
            raise ConfigError(
                f"{selected} is not tiered: its records are on this disk only and cannot be dropped",
                hint="`tiered disk truncate` and retention.* delete records of such a log",
            )
        app.need_remote()
        with open_tiers(app) as tiers:
            known, facts = tiers.known(), tiers.need_topic(topic)
            found = [_Drop(each, before) for each in partitions]
            for each in found:
                each.keep_unproven(tiers, facts, known.get(each.tp, NOTHING_KNOWN))
        lines = [line for each in found for line in each.lines()]
        if isinstance(log, LocalLog):
            for line in lines:
                app.out.say(line)
            segments = sum(len(each.going) for each in found)
            confirm(app, "disk drop", f"Delete {counted(segments, 'segment')} from this disk?")
            for each in found:
                each.carry_out(log)
            lines = [each.done() for each in found]
    for each in found:
        if each.problem:
            app.out.warn(f"{each.tp}: {each.problem}")
    fields = {"dry_run": app.dry_run, "topic": topic, "partitions": [each.fields() for each in found]}
    code = EXIT_WARNINGS if any(each.stays for each in found) else 0
    code = CorruptionError.exit_code if any(each.problem for each in found) else code
    return app.out.result("disk drop", fields, lines, code)


class _Drop:
    """Segments to delete from the disk of one partition: those that the checkpoint says are in the bucket.

    ``before``: place before which they begin. ``going``: the segments. ``stays``: number of offsets that stay.
    ``problem``: why the bucket lacks some that the checkpoint says it has.
    """

    def __init__(self, partition: ReadLog, before: LogPlace) -> None:
        self.tp, self.problem = partition.tp, ""
        self._uploaded = 0 if partition.upload is None else partition.upload.end_offset
        view = partition.positions()
        self._start = view.local_start_offset
        self._last = min(before.offset_in(0, MAX_LONG, partition.offset_for_time), view.end_offset)
        meant = [each for each in partition.sealed_segments() if each.base_offset < self._last]
        self.going = [each for each in meant if each.end_offset <= self._uploaded]

    @property
    def stays(self) -> int:
        return max(self._last - (self.going[-1].end_offset if self.going else self._start), 0)

    def keep_unproven(self, tiers: Tiers, facts: TopicFacts, known: RootLowerBounds) -> None:
        """Keep the segments from the first one on that the catalog in the bucket, or the store, does not have."""
        pinned = tiers.snapshot(facts, self.tp.partition, known)
        if not self.going:
            return
        at, end = self.going[0].base_offset, self.going[-1].end_offset
        at = at if pinned is None else max(at, pinned.start_offset)
        while pinned is not None and at < end and not self.problem and len(rows := tiers.run(pinned.piece(at))):
            for row in rows:
                if at >= end:
                    break
                if row.flags & FLAG_HOLE:
                    self.problem = f"the bucket lost the offsets {row.base} to {row.next}"
                    break
                found = tiers.run(judge_log(pinned.root.topic_id, self.tp, row, read_data=False))
                if found.problem:
                    self.problem = f"{found.key}: {found.problem}"
                    break
                at = row.next
        if at < end:
            self.problem = self.problem or f"the catalog in the bucket ends at offset {at}"
            self.problem += "; the segments here stay: `tiered repair` puts them back into the bucket"
            self.going = [each for each in self.going if each.end_offset <= at]

    def carry_out(self, log: LocalLog) -> None:
        """Delete the segments. Their files are unlinked when the call returns."""
        if self.going:
            partition = log.partition(self.tp)
            partition.delete_local_before(self.going[-1].end_offset)
            partition.maintenance.empty_trash(MAX_LONG)

    def done(self) -> str:
        size_bytes = sum(segment.size_bytes for segment in self.going)
        return f"{self.tp}: {counted(len(self.going), 'segment')} deleted, {human_bytes(size_bytes)}"

    def lines(self) -> list[str]:
        gone = self.done().replace(" deleted", "")
        if not self.stays or self.problem:
            return [gone]
        return [
            gone,
            f"{self.tp}: {counted(self.stays, 'offset')} stay: not uploaded yet; `tiered-uploader sync` "
            "seals and uploads them",
        ]

    def fields(self) -> dict[str, Any]:
        ends = [self.going[0].base_offset, self.going[-1].end_offset] if self.going else [-1, -1]
        return {
            "partition": self.tp.partition,
            "segments": len(self.going),
            "bytes": sum(segment.size_bytes for segment in self.going),
            "start_offset": ends[0],
            "end_offset": ends[1],
            "uploaded_offset": self._uploaded,
            "stays": self.stays,
            "problem": self.problem,
        }


@command.command("move")
@click.argument("partition", metavar="TOPIC:P")
@click.argument("target", metavar="DIR", type=click.Path(file_okay=False))
@pass_application
def move(app: Application, *, partition: str, target: str) -> int:
    """Move a partition from --log-dir to the log directory DIR.

    No program may write to either directory meanwhile. DIR is created if it is missing. The old files stay for a
    minute. Open a log over several directories with all of them from then on. A tiered partition cannot be moved.

    \b
    Examples:
      tiered disk move flights:0 /mnt/disk2/log --log-dir data --dry-run
      tiered disk move flights:0 /mnt/disk2/log --log-dir data --yes
    """
    dry_run = app.dry_run
    source, tp, place = app.need_log_dir(), one_partition(partition), folder("DIR", target)
    with open_view(app) as view:
        _check_move(view, tp, place)
        positions = view.partition(tp).positions()
    size_bytes = sum(path.stat().st_size for path in (source / str(tp)).iterdir() if path.is_file())
    _check_space(place, size_bytes)
    fields: dict[str, Any] = {
        "dry_run": dry_run,
        "topic": tp.topic,
        "partition": tp.partition,
        "from": str(source),
        "to": str(place),
        "start_offset": positions.local_start_offset,
        "end_offset": positions.end_offset,
        "size_bytes": size_bytes,
    }
    made = "" if place.is_dir() else ", which would be made" if dry_run else ", which is made"
    if not dry_run:
        app.out.say(f"{tp}: {human_bytes(size_bytes)} from {source} to {place}{made}")
        confirm(app, "disk move", f"Move {tp} to {place}?")
        with LocalTier.open([source, place], clock=app.clock, ids=app.ids) as logs:
            logs.move(tp, place)
            fields["end_offset"] = logs.partition(tp).positions().end_offset
    count = counted(fields["end_offset"] - fields["start_offset"], "offset")
    verb = "dry run: {} would move" if dry_run else "{} moved"
    line = f"{verb.format(tp)} to {place}{made if dry_run else ''}: {count}, {human_bytes(size_bytes)}"
    return app.out.result("disk move", fields, [line])


def _check_move(log: LogView, tp: TopicPartition, target: Path) -> None:
    """Raise ConfigError if the partition is tiered or in ``target`` already, or if the directories are nested."""
    source, place = log.directory.resolve(), target.resolve()
    if (target / str(tp)).is_dir():
        raise ConfigError(f"{tp} is in {target} already", hint="name another directory")
    log.partition(tp)
    if place.is_relative_to(source) or source.is_relative_to(place):
        raise ConfigError(
            f"one of {target} and {log.directory} is inside the other",
            hint=f"name a directory outside of {log.directory}",
        )
    if tp in log.claims.read() or tp in log.uploads.read():
        raise ConfigError(
            f"{tp} cannot move: it is tiered, and the bucket identifies its log directory",
            hint="`tiered restore` builds it in another directory from the bucket",
        )


def _check_space(target: Path, size_bytes: int) -> None:
    existing = next(path for path in (target.absolute(), *target.absolute().parents) if path.is_dir())
    space = PosixFiles().space(existing)
    if space is not None and size_bytes > space.free:
        raise DiskFullError(
            f"{target} has {human_bytes(space.free)} free, and the partition needs {human_bytes(size_bytes)}",
            hint="free space there, or name a directory of another disk",
        )


@command.command("truncate")
@click.argument("partition", metavar="TOPIC:P")
@click.argument("offset", type=click.IntRange(min=0))
@pass_application
def truncate(app: Application, *, partition: str, offset: int) -> int:
    """Remove the records of a partition from OFFSET on.

    Records that a bucket holds are never removed. No writer and no uploader may run meanwhile. The batch that holds
    OFFSET is removed whole: the log then ends where that batch began.

    \b
    Examples:
      tiered disk truncate flights:0 4711 --log-dir data --dry-run
      tiered disk truncate flights:0 4711 --log-dir data --yes
    """
    tp = one_partition(partition)
    refuse_internal(tp.topic)
    with open_view(app) as log:
        before = log.partition(tp).positions()
        _check_cut(tp, offset, before)
        end = cut_end(log.files, log.partition(tp).view(), offset)
    fields = {
        "dry_run": app.dry_run,
        "topic": tp.topic,
        "partition": tp.partition,
        "start_offset": min(before.start_offset, end),
        "end_offset_before": before.end_offset,
        "end_offset": end,
        "removed_offsets": before.end_offset - end,
    }
    if end == before.end_offset:
        line = f"{tp} ends at offset {end} already: there is nothing to remove"
        return app.out.result("disk truncate", fields, [line])
    removed = counted(before.end_offset - end, "offset")
    kept = (
        f"the bucket holds all below {before.uploaded_offset}" if before.uploaded_offset > 0 else "no bucket has them"
    )
    whole = f"; {offset} lies in the batch that begins at {end}, which is removed whole" if end < offset else ""
    app.out.say(f"{tp}: this removes {removed}, from {end} to {before.end_offset}; {kept}{whole}")
    if not app.dry_run:
        confirm(app, "disk truncate", f"Remove {removed} of {tp}?")
        end = fields["end_offset"] = _cut(app, tp, end)
    line = f"{'dry run: ' if app.dry_run else ''}{tp} {'would end' if app.dry_run else 'ends'} at offset {end}"
    return app.out.result("disk truncate", fields, [line])


def _check_cut(tp: TopicPartition, offset: int, positions: Positions) -> None:
    if offset > positions.end_offset:
        raise ConfigError(
            f"{tp} cannot be truncated at offset {offset}: it has offsets {positions.start_offset} to "
            f"{positions.end_offset}",
            hint=f"name an offset from {positions.start_offset} to {positions.end_offset}",
        )
    if offset < positions.uploaded_offset:
        raise ConfigError(
            f"{tp} cannot be truncated at offset {offset}: the records below {positions.uploaded_offset} are uploaded",
            hint=f"name an offset from {positions.uploaded_offset} on",
        )


@contextlib.contextmanager
def _without_uploader(app: Application, log: LocalLog) -> Iterator[None]:
    """Hold the uploader's lock during the block, so that no uploader commits removed records."""
    lock = uploader_lock(log.directory, log.files)
    if log.files.state(lock.path) is None:  # no uploader ever ran here
        yield
        return
    try:
        lock.acquire(app.clock)
    except LockedError as error:
        error.hint = "stop the uploader, which may send the records to remove; truncate, then start it again"
        raise
    try:
        log.refresh_uploads()  # its last commits are in the bucket
        yield
    finally:
        lock.release()


def _cut(app: Application, tp: TopicPartition, offset: int) -> int:
    """Remove the records from ``offset`` on. Return the end offset that the next open finds."""
    with open_directory(app) as log, _without_uploader(app, log):
        log.partition(tp).truncate_to(offset)
        log.transactions.positions.rewind_lost(app.clock.now_ms())
    with open_view(app) as view:
        return view.partition(tp).positions().end_offset
