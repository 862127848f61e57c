"""``tiered repair``: the way back for a log that another volume has fenced, and for a bucket that lost an object."""

from __future__ import annotations

import dataclasses

import click

from tiered.care.check import EXIT_WARNINGS
from tiered.care.run import advise, plan_rebuild, plan_rejoin, rebuild, rejoin
from tiered.errors import ConfigError, CorruptionError
from tiered.program.application import (
    Application,
    Command,
    Group,
    confirm,
    destructive,
    one_partition,
    pass_application,
)
from tiered.program.doors import need_directory, need_topic, open_tiers
from tiered.program.output import columns, counted

UNUSED_SHOWN = 20
"""Objects that a rebuilt catalog does not name, of those that are printed."""


@click.group("repair", cls=Group)
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
    return app.out.result("repair rejoin", fields, [done, "the next open claims and resumes at the bucket's end"])


@command.command("rebuild-catalog", cls=Command)
@click.argument("selected", metavar="TOPIC:P")
@destructive
@pass_application
def rebuild_command(app: Application, *, selected: str, dry_run: bool, yes: bool) -> int:
    """Make a partition's root anew, which is lost or damaged, from its history and its objects. Deletes nothing.

    What a trim had removed and nobody had collected yet is there again. Every claim ends: the log directory that wrote
    the partition goes on after `tiered repair rejoin`.

    \b
    Examples:
      tiered repair rebuild-catalog flights:0 --remote s3://acme-logs/prod --dry-run
      tiered repair rebuild-catalog flights:0 --remote s3://acme-logs/prod --yes
    """
    app.need_remote()
    tp = one_partition(selected)
    with open_tiers(app, with_local=False) as tiers:
        if tiers.store is None:
            raise ConfigError("there is no bucket to look at", hint="pass --remote")
        plan = plan_rebuild(tiers.store, tp, "repair rebuild-catalog")
        root = plan.root
        source = f"version {plan.copy_version} of hist/" if plan.copy_version else "no copy in hist/"
        app.out.say(
            f"{tp}: offsets {root.start_offset} to {root.next_offset} in {counted(root.added.segments, 'segment')}, "
            f"from {source} and {counted(plan.found, 'segment')} that it does not name"
        )
        for key in plan.unused[:UNUSED_SHOWN]:
            app.out.say(f"  not named, and kept: {key}")
        if len(plan.unused) > UNUSED_SHOWN:
            app.out.say(f"  and {counted(len(plan.unused) - UNUSED_SHOWN, 'more object')}; --json names all")
        if not dry_run:
            confirm(app, "repair rebuild-catalog", f"Write {root.key}?", yes=yes)
            rebuild(tiers.store, plan)
    fields = {
        "dry_run": dry_run,
        "topic": tp.topic,
        "partition": tp.partition,
        "copy_version": plan.copy_version,
        "version": root.version,
        "start_offset": root.start_offset,
        "next_offset": root.next_offset,
        "segments": root.added.segments,
        "found": plan.found,
        "unused": list(plan.unused),
    }
    done = f"{'dry run: ' if dry_run else ''}version {root.version} {'would be' if dry_run else 'was'} written"
    return app.out.result("repair rebuild-catalog", fields, [done, "who wrote it goes on after `tiered repair rejoin`"])


@command.command("advice", cls=Command)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@pass_application
def advice_command(app: Application, *, topics: tuple[str, ...]) -> int:
    """Say what can be done about roots and registry entries that are lost, or older than what was seen of them.

    Looks at the registry and every root, with --log-dir also at what that disk has seen; changes nothing. Without the
    right to list it looks at the topics that are named, or that the disk holds. Exit code 0: nothing is lost; 3: not
    everything could be looked at; 13: something is lost.

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
