"""``tiered repair``: the way back for a log that another volume has fenced, and for a bucket that lost an object."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from tiered.care.check import EXIT_WARNINGS
from tiered.care.mend import MendPlan
from tiered.care.rebuild import RebuildPlan
from tiered.care.run import (
    advise,
    mend,
    plan_entry,
    plan_mend,
    plan_put_back,
    plan_rebuild,
    plan_rejoin,
    plan_return,
    put_back,
    put_entry,
    rebuild,
    rejoin,
    version_with,
)
from tiered.care.undone import Undone
from tiered.errors import ConfigError, CorruptionError
from tiered.format.keys import FLAG_MAINTAINER
from tiered.model import TopicPartition
from tiered.program.application import (
    Application,
    Command,
    Group,
    confirm,
    destructive,
    one_partition,
    pass_application,
    split_topic,
)
from tiered.program.doors import need_directory, need_topic
from tiered.program.output import columns, counted
from tiered.program.settings import suggestion
from tiered.program.tiers import open_tiers
from tiered.remote.fence import owner_of
from tiered.repair.plan import RepairOptions
from tiered.repair.run import apply_repair, plan_repair
from tiered.store.base import Store

UNUSED_SHOWN = 20
"""Objects that a rebuilt catalog does not name, of those that are printed."""


class RepairGroup(Group):
    """Commands of ``tiered repair``. A topic or a partition in the place of a command is repaired."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take the name of a topic for the argument of the command that repairs it."""
        name = args[0]
        is_command = self.get_command(ctx, name) is not None or suggestion(name, self.list_commands(ctx))
        return super().resolve_command(ctx, args if is_command and ":" not in name else [REPAIR_COMMAND, *args])


REPAIR_COMMAND = "run"


@click.group("repair", cls=RepairGroup)
def command() -> None:
    """Bring a log back to work; nothing is ever deleted."""


@command.command("rejoin", cls=Command)
@click.argument("selected", nargs=-1, metavar="[TOPIC:P...]")
@destructive
@pass_application
def rejoin_command(app: Application, *, selected: tuple[str, ...], dry_run: bool, yes: bool) -> int:
    """Let a fenced log start again where the bucket ends. Its own files are set aside beside the log directory.

    \b
    Examples:
      tiered repair rejoin --log-dir data --dry-run
      tiered repair rejoin flights:0 --log-dir data --yes
    """
    directory = app.need_log_dir()
    need_directory(app)
    plan = plan_rejoin(directory, [one_partition(text) for text in selected], clock=app.clock)
    rows = [[aside.tp, aside.committed_end, aside.end_offset] for aside in plan.partitions]
    text = columns(["partition", "committed end", "end on this disk"], rows)
    for line in text:
        app.out.say(line)
    if not dry_run:
        confirm(app, "repair rejoin", f"Set these partitions aside in {plan.target}?", yes=yes)
        rejoin(plan, clock=app.clock)
    verb = "would be set aside" if dry_run else "set aside"
    fields = {
        "dry_run": dry_run,
        "target": str(plan.target),
        "partitions": [
            {
                "topic": aside.tp.topic,
                "partition": aside.tp.partition,
                "committed_end": aside.committed_end,
                "end_offset": aside.end_offset,
            }
            for aside in plan.partitions
        ],
    }
    done = f"{'dry run: ' if dry_run else ''}{counted(len(rows), 'partition')} {verb} in {plan.target}"
    lines = [done, "the next open claims and resumes at the bucket's end"]
    for aside in [] if dry_run else plan.partitions:
        tp, end = aside.tp, aside.committed_end
        if aside.end_offset > end:
            reads = f"{_without_remote(app)}tiered cat {tp.topic}:{tp.partition} --log-dir {plan.target} -o {end}"
            told = f"{tp}: offsets {end} to {aside.end_offset} are in no bucket; `{reads}` reads them"
            lines.append(told + _other_records(app))
    return app.out.result("repair rejoin", fields, lines)


@command.command(REPAIR_COMMAND, cls=Command, hidden=True)
@click.argument("selected", nargs=-1, metavar="[TOPIC[:P]...]")
@click.option("--from-dir", type=click.Path(path_type=Path), help="a log directory that may hold what the bucket lost")
@click.option("--to-version", type=click.IntRange(min=1), help="go back to this version of the catalog")
@click.option("--from-version", type=click.IntRange(min=1), help="go on from this copy, where two are possible")
@click.option("--accept-loss", is_flag=True, help="make holes of offsets that no copy holds; the plan names them")
@destructive
@pass_application
def run_command(app: Application, *, selected: tuple[str, ...], dry_run: bool, yes: bool, **chosen: Any) -> int:
    """Find what is damaged in a bucket and a log directory, show how it is repaired, ask, and repair it.

    What is replaced is kept: below aside/ in a bucket, in DIR.aside-... beside a log directory (--log-dir DIR).
    Exit code 3: something is left, or erased records come back.

    \b
    Examples:
      tiered repair flights:0 --remote s3://acme-logs/prod --dry-run
      tiered repair flights:0 --from-dir data --remote s3://acme-logs/prod --yes
      tiered repair flights:1 --log-dir data --accept-loss --dry-run
    """
    named = [_named(text) for text in selected]
    versions = chosen["to_version"] is not None or chosen["from_version"] is not None
    if versions and not (len(named) == 1 and isinstance(named[0], TopicPartition)):
        raise ConfigError("a version belongs to one partition", hint="name it: TOPIC:P")
    if app.log_dir is not None:
        need_directory(app)
    with _store(app) if app.remote is not None or app.log_dir is None else contextlib.nullcontext() as store:
        plan = plan_repair(store, named, RepairOptions(log_dir=app.log_dir, **chosen))
        for action in plan.actions:
            show = app.out.warn if action.act is None or action.lost or action.undone else app.out.say
            show(f"{action.where}: {action.problem}: {action.remedy}")
            for note in (*action.undone, *action.notes):
                app.out.say(f"  {note}")
        done = len(plan.actions) - len(plan.left)
        if done and not dry_run:
            confirm(app, "repair", f"Repair {counted(done, 'object')}?", yes=yes)
            apply_repair(store, plan)
    verb = "would be" if dry_run else "were" if done != 1 else "was"
    lines = [f"{'dry run: ' if dry_run else ''}{counted(done, 'object')} {verb} repaired, {len(plan.left)} left"]
    if not plan.actions:
        lines = ["nothing is damaged"]
    return app.out.result("repair", {"dry_run": dry_run, **plan.as_json()}, lines, plan.exit_code)


def _named(text: str) -> str | TopicPartition:
    topic, partition = split_topic(text)
    return topic if partition is None else TopicPartition(topic, partition)


def _without_remote(app: Application) -> str:
    """What stands before a command that is to read a disk alone, where the environment names a bucket."""
    origin = app.values["remote"].origin
    return "env -u TIERED_REMOTE " if app.remote is not None and origin.startswith("environment ") else ""


def _other_records(app: Application) -> str:
    """Why a disk is to be read alone, where a bucket is named: from its committed end on the bucket comes first."""
    if app.remote is None:
        return ""
    return (
        f"; without the remote that is named ({app.values['remote'].origin}): the bucket may have other records of "
        "these offsets, and would be read instead"
    )


@command.command("rebuild-catalog", cls=Command)
@click.argument("selected", metavar="TOPIC:P")
@click.option("--accept-loss", is_flag=True, help="make holes of offsets that are in no object; the plan names them")
@click.option(
    "--accept-order",
    is_flag=True,
    help="batches of Spark sinks, of which nothing tells the order, as they were decided",
)
@destructive
@pass_application
def rebuild_command(
    app: Application, *, selected: str, accept_loss: bool, accept_order: bool, dry_run: bool, yes: bool
) -> int:
    """Make a root anew from its history and objects: one that is lost, damaged, has lost pages, or is older than what
    was kept or claimed since. Deletes nothing.

    --accept-loss is refused where a transaction's marker, or the producers at the end of the log, would be lost: that
    changes what is shown of other offsets. The refusal says how a copy of the root takes its place, so that `tiered
    restore TOPIC:P --to DIR --as-of now --until-offset N --name NEW` keeps what lies before.

    What Spark sinks have committed since the newest copy, or without one, is told by their decisions below txn/. It is
    refused where one of them is missing, or where batches were decided side by side: nothing tells which of them came
    first. --accept-order takes them as they were decided: nothing is lost, and the plan names the offsets whose records
    may have had others, for whoever has kept some.

    Refused, too, where a rewrite has lost its .idx or its .log and what it was made of is still there: what an erasure
    or a compaction took out would be there again.

    What a trim had removed and nobody had collected yet is there again. Every claim ends: the log directory that wrote
    the partition goes on after `tiered repair rejoin TOPIC:P`.

    \b
    Examples:
      tiered repair rebuild-catalog flights:0 --remote s3://acme-logs/prod --dry-run
      tiered repair rebuild-catalog flights:0 --remote s3://acme-logs/prod --yes
    """
    tp = one_partition(selected)
    with _store(app) as store:
        owner = "repair rebuild-catalog"
        plan = plan_rebuild(store, tp, owner, accept_loss=accept_loss, accept_order=accept_order)
        return _put_root(app, "repair rebuild-catalog", store, plan, dry_run=dry_run, yes=yes)


@command.command("root", cls=Command)
@click.argument("selected", metavar="TOPIC:P")
@click.option(
    "--to-version", type=click.IntRange(min=1), required=True, help="a version that hist/ or a snapshot holds"
)
@destructive
@pass_application
def root_command(app: Application, *, selected: str, to_version: int, dry_run: bool, yes: bool) -> int:
    """Undo what a trim or a rewrite did: the catalog of an older version again, and what was appended since.

    Refused if anything that version names was collected. Every claim ends: the log directory that wrote the partition
    goes on after `tiered repair rejoin`. The root that is replaced is copied below aside/. What a compaction has
    dropped since stays away, deletions whose time was over, too: a key that was deleted after that version may return.
    So may what was erased since: the plan names the erasures, to be run again. Exit code 3 then.

    \b
    Example:
      tiered repair root flights:0 --to-version 4711 --remote s3://acme-logs/prod --dry-run
    """
    tp = one_partition(selected)
    with _store(app) as store:
        plan = plan_return(store, tp, to_version, f"repair root --to-version {to_version}")
        return _put_root(app, "repair root", store, plan, dry_run=dry_run, yes=yes)


@command.command("index", cls=Command)
@click.argument("selected", metavar="TOPIC:P")
@click.argument("offsets", nargs=-1, type=click.IntRange(min=0), metavar="[OFFSET...]")
@destructive
@pass_application
def index_command(app: Application, *, selected: str, offsets: tuple[int, ...], dry_run: bool, yes: bool) -> int:
    """Write segments of the bucket anew whose index bundle, or whose row of the catalog, is wrong. Loses nothing.

    Without offsets: all whose bundle is gone, cannot be read or describes other bytes. An offset names the segment
    that holds it, where `tiered check --read-data` says that something in its indexes is wrong. Refused where the
    bundle is lost and no segment before it tells the producers: behind a trim or a hole.

    \b
    Examples:
      tiered repair index flights:0 --remote s3://acme-logs/prod --dry-run
      tiered repair index flights:0 4711 --remote s3://acme-logs/prod --yes
    """
    return _mend(app, "repair index", selected, offsets, drop=False, dry_run=dry_run, yes=yes)


@command.command("put-back", cls=Command)
@click.argument("selected", metavar="TOPIC:P")
@click.argument("offsets", nargs=-1, type=click.IntRange(min=0), metavar="[OFFSET...]")
@destructive
@pass_application
def put_back_command(app: Application, *, selected: str, offsets: tuple[int, ...], dry_run: bool, yes: bool) -> int:
    """Put what the bucket has lost of segments back from a log directory that still holds it. Loses nothing.

    Without offsets: all segments whose object is gone, or has another size or checksum than the catalog names. An
    offset names the segment that holds it, where `tiered check --read-data` says that something in it is wrong. Only
    bytes with the size and the checksum of the catalog's row are put there, under the same name: snapshots have them
    again, too. What lay there damaged is copied below aside/. Exit code 3: the disk does not hold all. Asks for the
    rights of who made the object (`writer`, or `maintainer` for a merged one), with something in its place for both.

    \b
    Examples:
      tiered repair put-back flights:0 --log-dir data --remote s3://acme-logs/prod --dry-run
      tiered repair put-back flights:0 4711 --log-dir data --remote s3://acme-logs/prod --yes
    """
    tp, directory = one_partition(selected), app.need_log_dir()
    with _store(app) as store:
        plan = plan_put_back(store, tp, directory, offsets)
        held = [each for each in plan.segments if each.held]
        missing = [each for each in plan.segments if not each.held]
        for each in held:
            app.out.say(f"{tp}: segment {each.row.base} to {each.row.next}: {each.problem}")
        for each in missing:
            app.out.warn(f"{tp}: segment {each.row.base} to {each.row.next}: {each.problem}; {directory} lacks it, too")
        if held and not dry_run:
            confirm(app, "repair put-back", f"Put {counted(len(held), 'object')} back?", yes=yes)
            put_back(store, plan)
    fields = {
        "dry_run": dry_run,
        "topic": tp.topic,
        "partition": tp.partition,
        "segments": [
            {"start": each.row.base, "end": each.row.next, "key": each.key, "problem": each.problem, "held": each.held}
            for each in plan.segments
        ],
    }
    done = f"{counted(len(held), 'object')} {'would be' if dry_run else 'were' if len(held) != 1 else 'was'} put back"
    lines = [f"{'dry run: ' if dry_run else ''}{done}"]
    return app.out.result("repair put-back", fields, lines, EXIT_WARNINGS if missing else 0)


@command.command("drop-segment", cls=Command)
@click.argument("selected", metavar="TOPIC:P")
@click.argument("offsets", nargs=-1, type=click.IntRange(min=0), metavar="[OFFSET...]")
@click.option("--accept-loss", is_flag=True, help="even where a copy may lie under another prefix; the plan names it")
@destructive
@pass_application
def drop_command(
    app: Application, *, selected: str, offsets: tuple[int, ...], accept_loss: bool, dry_run: bool, yes: bool
) -> int:
    """Give up what cannot be read of segments: batches that are whole stay, the rest becomes a hole. Loses records.

    Without offsets: all segments whose object is gone or is not what the catalog names. The plan names the offsets
    that are lost, and the root keeps the reason. Before: put the object back from a log directory (`tiered repair
    put-back`), a version or a backup of the bucket. With --log-dir what that directory still holds is never given up.
    Nor is what a rewrite took the place of, until that is collected: the refusal names the version to go back to.

    Refused where an object of the same name and size lies elsewhere below the store's prefix, as after a copy or a move
    by hand: the refusal names it, and the command that copies it back. --accept-loss goes on all the same.

    Refused, too, where a transaction's marker would be lost, or nothing tells the producers at the end of the log: that
    changes what is shown of other offsets. `tiered restore TOPIC:P --to DIR --until-offset N --name NEW` keeps what
    lies before.

    \b
    Examples:
      tiered repair drop-segment flights:0 --remote s3://acme-logs/prod --dry-run
      tiered repair drop-segment flights:0 4711 --remote s3://acme-logs/prod --yes
    """
    return _mend(
        app, "repair drop-segment", selected, offsets, drop=True, accept_loss=accept_loss, dry_run=dry_run, yes=yes
    )


@command.command("registry", cls=Command)
@click.argument("topic", metavar="TOPIC")
@click.option("--id", "topic_id", type=click.UUID, help="which, where several topic ids are called so")
@destructive
@pass_application
def registry_command(app: Application, *, topic: str, topic_id: UUID | None, dry_run: bool, yes: bool) -> int:
    """Make a topic's registry entry anew, which is gone, damaged or older, from the topic's roots.

    Settings of the entry that is there stay, if it can be read; else set them with `tiered topics alter`.

    \b
    Example:
      tiered repair registry flights --remote s3://acme-logs/prod --dry-run
    """
    with _store(app) as store:
        plan = plan_entry(store, topic, topic_id)
        entry = plan.entry
        app.out.say(f"topics/{topic}: {plan.problem}")
        app.out.say(f"  it would name {counted(entry.partitions, 'partition')} of topic id {entry.topic_id}")
        if plan.settings_lost:
            app.out.warn(f"the settings of topic {topic} are not known: the defaults; see `tiered topics alter`")
        if not dry_run:
            confirm(app, "repair registry", f"Write topics/{topic}?", yes=yes)
            put_entry(store, plan)
    fields = {
        "dry_run": dry_run,
        "topic": topic,
        "topic_id": str(entry.topic_id),
        "partitions": entry.partitions,
        "problem": plan.problem,
        "config": dict(entry.config),
        "settings_lost": plan.settings_lost,
    }
    done = f"{'dry run: ' if dry_run else ''}topics/{topic} {'would be' if dry_run else 'was'} written"
    return app.out.result("repair registry", fields, [done], EXIT_WARNINGS if plan.settings_lost else 0)


@contextlib.contextmanager
def _store(app: Application) -> Iterator[Store]:
    app.need_remote()
    with open_tiers(app, with_local=False) as tiers:
        if tiers.store is None:
            raise ConfigError("there is no bucket to look at", hint="pass --remote")
        yield tiers.store


def _put_root(app: Application, verb: str, store: Store, plan: RebuildPlan, *, dry_run: bool, yes: bool) -> int:
    """Shows what root would be written, asks, writes it."""
    tp, root = plan.tp, plan.root
    source = (
        f"version {plan.copy_version}, which was kept," if plan.copy_version else "no copy in hist/ or of a snapshot"
    )
    if plan.older:
        app.out.say(f"{tp}: the root that is there is an older one, which was put back: {plan.older}")
    if plan.torn_pages:
        source = f"version {plan.copy_version}, which has lost {counted(plan.torn_pages, 'page')},"
    app.out.say(
        f"{tp}: offsets {root.start_offset} to {root.next_offset} in {counted(root.added.segments, 'segment')}, "
        f"from {source} and {counted(plan.found, 'segment')} that it does not name"
    )
    if plan.unread:
        app.out.warn(
            f"{tp}: of the kept copies {plan.unread} that are newer cannot be read, or lack pages: what was trimmed or "
            f"compacted away since then may be there again"
        )
    if plan.batches:
        app.out.say(f"{tp}: what sinks have committed in {counted(plan.batches, 'decision')} is told by these alone")
    if plan.unproven[1]:
        app.out.warn(
            f"{tp}: nothing tells in which order sinks committed what has offsets {plan.unproven[0]} to "
            f"{plan.unproven[1]}: a record may have had another of these offsets before"
        )
    for one in plan.undone:
        app.out.warn(_undone_line(tp, root.topic_id, one))
    for start, end in plan.lost:
        app.out.warn(f"{tp}: offsets {start} to {end} are in no object: they are lost, a hole takes their place")
    if plan.gone[1]:
        app.out.warn(f"{tp}: offsets {plan.gone[0]} to {plan.gone[1]} are in no object: trimmed before, or lost")
    for key in plan.bare:
        app.out.warn(
            f"{tp}: {key} has no .idx that fits: `tiered repair index {tp.topic}:{tp.partition}` mends what the root "
            f"names, or says what is lost; behind the end it is an upload that never ended, or lost records: a sweep "
            f"takes it, copy it"
        )
    for key in plan.unused[:UNUSED_SHOWN]:
        app.out.say(f"  not named, and kept: {key}")
    if len(plan.unused) > UNUSED_SHOWN:
        app.out.say(f"  and {counted(len(plan.unused) - UNUSED_SHOWN, 'more object')}; --json names all")
    if not dry_run:
        confirm(app, verb, f"Write {root.key}?", yes=yes)
        rebuild(store, plan)
    fields = {
        "dry_run": dry_run,
        "topic": tp.topic,
        "partition": tp.partition,
        "copy_version": plan.copy_version,
        "older": plan.older,
        "unread": plan.unread,
        "torn_pages": plan.torn_pages,
        "version": root.version,
        "start_offset": root.start_offset,
        "next_offset": root.next_offset,
        "segments": root.added.segments,
        "found": plan.found,
        "lost": [list(each) for each in plan.lost],
        "unused": list(plan.unused),
        "bare": list(plan.bare),
        "gone": list(plan.gone),
        "batches": plan.batches,
        "unproven": list(plan.unproven),
        "undone": [dataclasses.asdict(one) for one in plan.undone],
    }
    done = f"{'dry run: ' if dry_run else ''}version {root.version} {'would be' if dry_run else 'was'} written"
    lines = [done, f"who wrote it goes on after `tiered repair rejoin {tp.topic}:{tp.partition} --log-dir DIR`"]
    warned = plan.lost or plan.bare or plan.gone[1] or plan.unread or plan.unproven[1] or plan.undone
    return app.out.result(verb, fields, lines, EXIT_WARNINGS if warned else 0)


def _undone_line(tp: TopicPartition, topic_id: UUID, one: Undone) -> str:
    """Return the warning that erased records may be there again."""
    again = (
        f"erase them again afterwards, `tiered erase {tp.topic}:{tp.partition} --key K --yes` with what was named then"
    )
    return one.sentence(tp, topic_id, again)


def _mend(
    app: Application,
    verb: str,
    selected: str,
    offsets: tuple[int, ...],
    *,
    drop: bool,
    dry_run: bool,
    yes: bool,
    accept_loss: bool = False,
) -> int:
    """Shows which segments would be written anew and what is lost with them, asks, writes them."""
    tp = one_partition(selected)
    with _store(app) as store:
        plan = plan_mend(store, tp, offsets, drop=drop, accept_loss=accept_loss)
        if drop and app.log_dir is not None:
            _need_not_held(store, tp, app.log_dir, plan)
        if drop:
            _need_no_older(store, tp, plan)
        for each in plan.rows:
            app.out.say(f"{tp}: segment {each.row.base} to {each.row.next}: {each.problem}")
            for loss in each.lost:
                app.out.warn(f"{tp}: offsets {loss.start} to {loss.end} are lost: {loss.why}")
        version = plan.version
        if not dry_run:
            what = "Give the lost offsets up?" if plan.lost else f"Write {counted(len(plan.rows), 'segment')} anew?"
            confirm(app, verb, what, yes=yes)
            version = mend(store, plan, owner_of(verb))
    fields = {
        "dry_run": dry_run,
        "topic": tp.topic,
        "partition": tp.partition,
        "version": version,
        "segments": [
            {
                "start": each.row.base,
                "end": each.row.next,
                "problem": each.problem,
                "lost": [[loss.start, loss.end] for loss in each.lost],
            }
            for each in plan.rows
        ],
    }
    done = f"{counted(len(plan.rows), 'segment')} {'would be' if dry_run else 'written'} anew"
    code = EXIT_WARNINGS if plan.lost else 0
    return app.out.result(verb, fields, [f"{'dry run: ' if dry_run else ''}{done}"], code)


def _need_not_held(store: Store, tp: TopicPartition, directory: Path, plan: MendPlan) -> None:
    """Raises ConfigError if the disk holds what would be given up."""
    offsets = [each.row.base for each in plan.rows if each.lost]
    if not offsets:
        return
    for each in plan_put_back(store, tp, directory, offsets).segments:
        if each.held:
            raise ConfigError(
                f"{tp}: {directory} still holds offsets {each.row.base} to {each.row.next}: nothing was given up",
                hint=f"`tiered repair put-back {tp.topic}:{tp.partition} {each.row.base} --log-dir {directory}` puts "
                f"them back",
            )


def _need_no_older(store: Store, tp: TopicPartition, plan: MendPlan) -> None:
    """Raises ConfigError if what a rewrite took the place of is still there, and holds what would be given up."""
    rewrites = [each.row for each in plan.rows if each.lost and each.row.flags & FLAG_MAINTAINER]
    for row in rewrites:
        version = version_with(store, tp, [row])
        if version:
            raise ConfigError(
                f"{tp}: what version {version} had in place of offsets {row.base} to {row.next} is still there: "
                f"nothing was given up",
                hint=f"`tiered repair root {tp.topic}:{tp.partition} --to-version {version}` goes back before that "
                f"rewrite, with all that was appended since; what later rewrites took out is there again, too",
            )


@command.command("advice", cls=Command)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@pass_application
def advice_command(app: Application, *, topics: tuple[str, ...]) -> int:
    """Say what can be done about roots and registry entries that are lost, or older than what was seen of them, and
    about decisions of sinks that cannot be read.

    Looks at the registry, every root and every decision, with --log-dir also at what that disk has seen; changes
    nothing. Without the right to list it looks at the topics that are named, or that the disk holds. What a newer
    release wrote is named, and not looked at. Exit code 0: nothing is lost; 3: not everything could be looked at; 13:
    something is lost.

    \b
    Examples:
      tiered repair advice --log-dir data --remote s3://acme-logs/prod
      tiered repair advice flights --remote s3://acme-logs/prod --json
    """
    app.need_remote()
    with open_tiers(app) as tiers:
        if tiers.store is None:
            raise ConfigError("there is no bucket to look at", hint="pass --remote")
        advised = advise(tiers.store, tiers.local, topics)
    for name in topics:
        need_topic(name, advised.topics)
    for note in advised.not_looked_at:
        app.out.warn(f"not looked at: {note}")
    lines = []
    for advice in advised.lost:
        lines.append(f"{advice.key}: {advice.problem}")
        lines += [f"  - {step}" for step in advice.steps]
    fields = {
        "lost": [dataclasses.asdict(advice) for advice in advised.lost],
        "not_looked_at": list(advised.not_looked_at),
    }
    code = CorruptionError.exit_code if lines else EXIT_WARNINGS if advised.not_looked_at else 0
    lines = lines or ["nothing that could be looked at is lost" if code else "nothing is lost"]
    return app.out.result("repair advice", fields, lines, code)
