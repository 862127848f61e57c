"""``tiered repair``: find damage, show the repair, ask, and repair."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from tiered import admin
from tiered.errors import (
    ConfigError,
    CorruptionError,
    LogDestroyedError,
    NotFoundError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.local.directory.read_only_log import LogView
from tiered.model import TopicPartition
from tiered.plan.ownership import VolumeProof, is_own_claim
from tiered.program.application import (
    HELP_NAMES,
    Application,
    Command,
    Group,
    confirm,
    one_partition,
    pass_application,
    topic_or_partition,
)
from tiered.program.open_log import open_tiers, open_view
from tiered.program.open_reader import need_directory
from tiered.program.open_store import open_remote
from tiered.program.output import columns, counted
from tiered.program.partition_status import PartitionStatus, gather
from tiered.program.settings import suggestion
from tiered.repair.log_directory import RejoinPlan

REPAIR_COMMAND = "TOPIC[:P]"
"""Name of the command that repairs the arguments in its place. No topic has this name."""


class RepairGroup(Group):
    """Group of the commands of ``tiered repair``. Arguments without a command's name belong to ``REPAIR_COMMAND``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the name of the repairing command before the arguments, unless they begin with a command's name.

        Without arguments it repairs all topics of the log that the environment or a file names.
        """
        names = self.list_commands(ctx)
        if not args and not ctx.resilient_parsing:
            app = Application(dict(ctx.find_root().obj))
            args = [] if app.log_dir is None and app.remote is None else [REPAIR_COMMAND]
        elif args and args[0] not in HELP_NAMES and not {*args} & {*names} and not suggestion(args[0], names):
            args = [REPAIR_COMMAND, *args]
        return super().parse_args(ctx, args)


@click.group("repair", cls=RepairGroup)
def command() -> None:
    """Repair a log. Copies of replaced objects and files stay.

    \b
    Examples:
      tiered repair flights:0 --remote s3://acme-logs/prod --dry-run
      tiered repair flights:0 --from-dir data --remote s3://acme-logs/prod --yes
      tiered repair rejoin flights:0 --log-dir data --yes
    """


@command.command("rejoin", cls=Command)
@click.argument("selected", nargs=-1, metavar="[TOPIC:P...]")
@pass_application
def rejoin_command(app: Application, *, selected: tuple[str, ...]) -> int:
    """Let a fenced log start again where the bucket ends. Its local files are moved aside, next to the log directory.

    Without a partition: those that are fenced or end below the bucket's end. A partition that is neither is refused.
    With --remote the bucket is asked, too.

    \b
    Examples:
      tiered repair rejoin --log-dir data --dry-run
      tiered repair rejoin flights:0 --log-dir data --yes
    """
    directory = app.need_log_dir()
    need_directory(app)
    named = [one_partition(text) for text in selected]
    states = _states(app)
    with open_view(app) as log:
        for tp in named:
            if (state := states.get(tp)) is not None and _is_healthy(state, log):
                raise ConfigError(
                    f"{tp} is neither fenced nor behind the bucket: nothing was moved",
                    hint=f"`tiered status {tp.topic}` shows its state"
                    + ("" if app.remote is not None else "; --remote URL asks the bucket, too"),
                )
    overtaken = [tp for tp, state in states.items() if state.overtaken]
    change = admin.rejoin(directory, named or overtaken, clock=app.clock)
    plan = change.details
    rows = [[aside.tp, aside.committed_end, aside.end_offset] for aside in plan.partitions]
    text = columns(["partition", "committed end", "end on this disk"], rows)
    for line in text:
        app.out.say(line)
    ends = _bucket_ends(app, plan)
    if not app.dry_run:
        confirm(app, "repair rejoin", f"Set these partitions aside in {plan.target}?")
        change.apply()
    verb = "would be set aside" if app.dry_run else "set aside"
    fields = {
        "dry_run": app.dry_run,
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
    done = f"{'dry run: ' if app.dry_run else ''}{counted(len(rows), 'partition')} {verb} in {plan.target}"
    lines = [done, "the next open claims and resumes at the bucket's end"]
    for aside in [] if app.dry_run else plan.partitions:
        tp, end = aside.tp, min(aside.committed_end, ends.get(aside.tp, aside.committed_end))
        if aside.end_offset > end:
            unset, why = _without_remote(app)
            reads = f"{unset}tiered cat {tp.topic}:{tp.partition} --log-dir {plan.target} --from {end}"
            lines.append(
                f"{tp}: offsets {end} to {aside.end_offset} are perhaps on this disk only; `{reads}` reads them{why}"
            )
    return app.out.result("repair rejoin", fields, lines)


@command.command(REPAIR_COMMAND, cls=Command, exits={3: "some damage is left, or erased records come back"})
@click.argument("selected", nargs=-1, metavar="...")
@click.option("--from-dir", type=click.Path(path_type=Path), help="a log directory that may hold what the bucket lost")
@click.option(
    "--to-version",
    type=click.IntRange(min=0),
    help="go back to this version of the catalog; 0: an error that lists those that are kept",
)
@click.option("--from-version", type=click.IntRange(min=1), help="go on from this copy, where two are possible")
@click.option("--accept-loss", is_flag=True, help="make holes of offsets that no copy holds; the plan names them")
@pass_application
def run_command(app: Application, *, selected: tuple[str, ...], **chosen: Any) -> int:
    """Find damage in a bucket and a log directory, show the repairs, ask, and repair.

    Without a topic: all topics. Older versions of objects come first, then the directory of --from-dir (without it that
    of --log-dir), then what is left in the bucket. What is replaced is kept: below aside/ in a bucket, in
    DIR.aside-... beside a log directory (--log-dir DIR).

    \b
    Examples:
      tiered repair flights:0 --remote s3://acme-logs/prod --dry-run
      tiered repair flights:0 --from-dir data --remote s3://acme-logs/prod --yes
      tiered repair flights:0 --to-version 4711 --remote s3://acme-logs/prod --yes
      tiered repair flights:1 --log-dir data --accept-loss --dry-run
    """
    named = [topic_or_partition(text) for text in selected]
    versions = chosen["to_version"] is not None or chosen["from_version"] is not None
    if versions and not (len(named) == 1 and isinstance(named[0], TopicPartition)):
        raise ConfigError("--to-version and --from-version need a single partition", hint="name the partition: TOPIC:P")
    if None not in (chosen["to_version"], chosen["from_version"]):
        raise ConfigError("--to-version and --from-version exclude each other", hint="give one of them")
    if app.log_dir is not None:
        need_directory(app)
    asked = app.remote is not None or app.log_dir is None
    with contextlib.closing(open_remote(app)) if asked else contextlib.nullcontext() as store:
        change = admin.repair(app.log_dir, store, named, **chosen)
        plan = change.details
        for action in plan.actions:
            show = app.out.warn if action.act is None or action.lost or action.undone else app.out.say
            show(f"{action.where}: {action.problem}: {action.remedy}")
            for note in (*action.undone, *action.notes):
                app.out.say(f"  {note}")
        done = len(plan.actions) - len(plan.left)
        if done and not app.dry_run:
            confirm(app, "repair", f"Repair {counted(done, 'object')}?")
            change.apply()
    verb = "would be" if app.dry_run else "were" if done != 1 else "was"
    lines = [f"{'dry run: ' if app.dry_run else ''}{counted(done, 'object')} {verb} repaired, {len(plan.left)} left"]
    if not plan.actions:
        lines = ["nothing is damaged"]
    return app.out.result("repair", {"dry_run": app.dry_run, **plan.as_json()}, lines, plan.exit_code)


def _states(app: Application) -> dict[TopicPartition, PartitionStatus]:
    """Return the state of each partition, by the disk alone if there is no bucket or it cannot be read.

    The disk alone knows of a newer claim only after an uploader has met it.
    """
    try:
        with open_tiers(app) as tiers:
            return {entry.tp: entry for entry in gather(tiers, {})}
    except (RemoteUnavailableError, RemotePermissionError, NotFoundError) as error:
        app.out.warn(f"the bucket was not asked: {error.message}")
    with open_tiers(app, with_remote=False) as tiers:
        return {entry.tp: entry for entry in gather(tiers)}


def _is_healthy(state: PartitionStatus, log: LogView) -> bool:
    """Return True if the partition may go on as it is. By the disk alone: nothing there says that it may not."""
    proof = log.claims.proof(state.tp)
    if state.positions is None or state.reasons:
        return False
    if state.pinned is None:
        return bool(proof.token) or state.tp not in log.uploads.read()
    end = state.positions.end_offset
    volume = VolumeProof(str(log.volume_id), False, end, token=proof.token or "", last_append=proof.last_append or "")
    return is_own_claim(state.pinned.root, volume) and end >= state.pinned.next_offset


def _bucket_ends(app: Application, plan: RejoinPlan) -> dict[TopicPartition, int]:
    """Return the ends of the planned partitions in the bucket, of those that it has and that can be read.

    A bucket that was restored to an earlier time ends below the committed end that the disk knows.
    """
    if app.remote is None:
        return {}
    ends: dict[TopicPartition, int] = {}
    with contextlib.suppress(TieredError), open_tiers(app) as tiers:
        topics = tiers.topics(unreadable={})
        for tp in (aside.tp for aside in plan.partitions if aside.tp.topic in topics):
            with contextlib.suppress(CorruptionError, LogDestroyedError):
                pinned = tiers.snapshot(topics[tp.topic], tp.partition)
                ends[tp] = 0 if pinned is None else pinned.next_offset
    return ends


def _without_remote(app: Application) -> tuple[str, str]:
    """Return (before, after): texts around a command line, so that it reads only the disk though a bucket is set."""
    if app.remote is None:
        return "", ""
    origin = app.values["remote"].origin
    why = f"; without the remote that is named ({origin}): the bucket may have other records of these offsets"
    return "env -u TIERED_REMOTE " if origin.startswith("environment ") else "", why
