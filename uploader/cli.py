"""Commands ``tiered-uploader run | sync | pause | resume``. Each returns an exit status. stdout gets only data."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from tiered.arguments import at_home
from tiered.clock import SystemClock, SystemIds
from tiered.config import parse_duration_ms
from tiered.engine.disk import LogDirectory
from tiered.engine.drain import DrainMode
from tiered.engine.reports import Exit
from tiered.engine.wait import NAMES, follow, shown
from tiered.errors import ConfigError, LockedError, TieredError, UnknownTopicError
from tiered.format.coordinator_records import is_state_log
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PauseFile, UploadCheckpoint
from tiered.model import TopicPartition
from tiered.plan.pacing import ALL_TOPICS, Pause
from tiered.program.application import Group, need_command, write_commands, write_exits
from tiered.program.command_line import as_error
from tiered.program.output import Output, StdoutClosed, columns, complain, counted
from tiered.program.run import EXIT_INTERRUPTED
from tiered.program.settings import LIMIT_OPTIONS, setting_option
from tiered.store.aio_driver import DaemonLoop
from uploader import health, telemetry
from uploader.config import Settings, resolve
from uploader.service import Service, ServicePlace, serve
from uploader.telemetry import Notify

F = TypeVar("F", bound=Callable[..., Any])

_NO_ARGUMENTS: tuple[type[click.UsageError], ...] = tuple(
    kind for kind in (getattr(click.exceptions, "NoArgsIsHelpError", None),) if kind is not None
)
"""Error of newer versions of click for the program without arguments. It holds the help."""

_PLACE = (
    setting_option("log_dir"),
    setting_option("sidecar"),
    setting_option("remote"),
    click.option("--config", "config_path", envvar="TIERED_CONFIG", help="Settings in TOML (or TIERED_CONFIG)."),
    setting_option("log_format"),
    click.option("--debug", is_flag=True, envvar="TIERED_DEBUG", help="Show tracebacks and more log lines."),
    click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
)
_WORK = (
    setting_option("uploads"),
    setting_option("sidecar_compacted"),
    setting_option("sidecar_held"),
    *LIMIT_OPTIONS,
)


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _place(settings: Settings) -> ServicePlace:
    """Return log directory and store. Raises ConfigError if one is not set, or for a ``memory://`` store.

    Objects of such a store end with the process.
    """
    directory, store = settings.place()
    if store.scheme == "memory":
        raise ConfigError(
            f"{store.url} exists only in one process: uploaded segments would be lost when it ends",
            hint="use file:///dir to try it out",
        )
    return ServicePlace(directory, store)


def _settings(flags: dict[str, Any], config_path: str | None) -> Settings:
    if config_path == "" and os.environ.get("TIERED_CONFIG") != "":  # an unset variable of a script
        raise ConfigError("--config is empty", hint="give it a value, or leave it out")
    return resolve(flags, os.environ, at_home("--config", Path(config_path)) if config_path else None)


class UploaderCommand(click.Command):
    """A command of the daemon, whose help ends with its exit codes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        write_exits(
            formatter, {11: "another uploader, or fenced", 14: Group.exits[14], 75: "data stays local, try again"}
        )


class Program(click.Group):
    """Group of the uploader's commands. Its help has the whole first sentence of each command."""

    command_class = UploaderCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does. Raises ConfigError with a hint for an unknown name."""
        need_command(self, ctx, args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, each with the first sentence of its help."""
        write_commands(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes below the help text."""
        write_exits(formatter, {14: Group.exits[14]})


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tieredlog", prog_name="tiered-uploader")
def program() -> None:
    """Upload the sealed segments of a log directory, and commit them to the bucket's catalog.

    Every option can also be set in the environment (TIERED_UPLOADER_SCAN and so on), or in the table [uploader] of a
    TOML file.
    """


@program.command()
@_options(*_PLACE, *_WORK)
@setting_option("http")
@setting_option("drain")
@setting_option("drain_timeout")
@setting_option("scan")
@setting_option("seal_idle")
@setting_option("lag_limit")
@setting_option("maintain", is_flag=True, default=None)
@setting_option("maintain_every")
def run(config_path: str | None, debug: bool, dry_run: bool, **flags: Any) -> None:
    """Upload until SIGTERM, then send the rest and end.

    SIGHUP reads the configuration file again. The log names the settings that need a restart.

    Example: tiered-uploader run --log-dir /var/lib/tieredlog --remote s3://acme-logs/prod
    """
    settings = _settings(flags, config_path)
    if dry_run:
        _print_plan(settings, DrainMode.ALL)
        return
    form = _configure_logs(settings, debug)
    service = Service(_place(settings), settings, notify=Notify())
    _end(_run(serve(service, reload=lambda: _settings(flags, config_path))), form)


@program.command()
@_options(*_PLACE, *_WORK)
@click.option("--wait/--no-wait", default=True, help="Roll active segments too, also through a writer (the default).")
@click.option("--timeout", help="Give up after this time with status 75, as 60s. Default: wait.")
def sync(config_path: str | None, debug: bool, dry_run: bool, wait: bool, timeout: str | None, **flags: Any) -> None:
    """Upload and commit everything once, then end. This is for cron and preStop hooks.

    --wait rolls the active segments first. If a process has the log open, that process rolls them. --no-wait sends
    only sealed segments. Beside a running daemon the command waits for the daemon's uploads.

    The exit code is 0 if the bucket holds everything, 75 if data stays local, 11 if a newer claim owns a partition,
    12 if the store refuses. A commit that was read back before needs no request, so 0 is possible during an outage.
    """
    settings, mode, timeout_ms = _settings(flags, config_path), _MODES[wait], _timeout_ms(timeout)
    if dry_run:
        _print_plan(settings, mode)
        return
    form = _configure_logs(settings, debug, brief=True)
    ending, counts = _sync(settings, mode, timeout_ms, form)
    if form == "text" and (ending.code == 0 or counts):
        click.echo(_committed(counts), err=True)
    _end(ending, form)


_MODES = {True: DrainMode.ALL, False: DrainMode.SEALED}
"""Records that a sync sends with --wait and with --no-wait."""


def _print_plan(settings: Settings, mode: DrainMode) -> None:
    """Print the offsets that wait for an upload, as this disk knows them. Takes no lock and asks no store."""
    place, files, rows, total = _place(settings), PosixFiles(), list[list[object]](), 0
    uploads, pauses = UploadCheckpoint(place.directory, files).read(), PauseFile(place.directory, files).read()
    with LogView.open(settings.sidecar or place.directory, files=files) as log:
        for tp in (tp for tp in log.partitions() if not is_state_log(tp.topic)):
            if tp in log.out_of_service:
                rows.append([tp, None, None, None, "out of service"])
                continue
            partition = log.partition(tp)
            positions, sealed = partition.positions(), partition.sealed_segments()
            start = positions.local_start_offset
            end = positions.end_offset if mode is DrainMode.ALL else sealed[-1].end_offset if sealed else start
            uploaded = uploads[tp].end_offset if tp in uploads else start
            note = "paused" if pauses.keys() & {tp.topic, ALL_TOPICS} else ""
            rows.append([tp, uploaded, max(end, uploaded), max(end - uploaded, 0), note])
            total += max(end - uploaded, 0)
    for line in columns(["partition", "uploaded", "to offset", "offsets", "note"], rows):
        click.echo(line)
    click.echo(f"dry run: would upload {counted(total, 'offset')}", err=True)


def _timeout_ms(text: str | None) -> int | None:
    found = parse_duration_ms(text, "--timeout") if text is not None else None
    if found is not None and found < 0:
        raise ConfigError(f"--timeout: {text!r} is less than 0", hint="for example 60s; leave it out to wait")
    return found


def _sync(
    settings: Settings, mode: DrainMode, timeout_ms: int | None, form: str
) -> tuple[Exit, dict[TopicPartition, int]]:
    """Upload, or wait for an uploader that runs already. If that one ends, upload here.

    Return (exit, number of committed offsets by partition). ``timeout_ms`` None: no limit. ``form``: format of the
    log, "text" or "json".
    """
    clock = SystemClock()
    begun = clock.monotonic()

    def progress(text: str) -> None:
        if form == "text":
            click.echo(text, err=True)
        telemetry.emit(logging.INFO, "waiting", text, {})

    while True:
        spent_ms = int((clock.monotonic() - begun) * 1000)
        left_ms = None if timeout_ms is None else max(0, timeout_ms - spent_ms)
        service = Service(_place(settings), settings)
        try:
            running = serve(service, oneshot=mode, timeout_ms=left_ms, reload=lambda: settings, progress=progress)
            return _run(running), service.committed
        except LockedError:
            directory = LogDirectory(settings.place()[0], clock=clock, ids=SystemIds())
            text = f"waiting for the uploader that runs already: {directory.uploader() or 'another process'}"
            if form == "text":
                click.echo(text, err=True)
            telemetry.emit(logging.INFO, "following", text, {})
            everything = mode is DrainMode.ALL
            counts = follow(directory, clock=clock, timeout_ms=left_ms, roll=everything, progress=progress)
        if counts is not None:
            return Exit(0, "the running uploader has committed all that was asked for"), counts


@program.command()
@click.argument("topics", nargs=-1)
@_options(*_PLACE)
@click.option("--reason", default="", help="Why, as `tiered status` shows it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def pause(
    topics: tuple[str, ...], reason: str, as_json: bool, dry_run: bool, config_path: str | None, **flags: Any
) -> None:
    """Stop uploads of TOPICS, or of all topics, until `resume`.

    A pause survives restarts. Appends continue, and data stays local. Uploads that have begun are finished and
    committed. A daemon, and an uploader inside an application, stop within a second. A daemon's maintenance stops
    after its current action. A sync stops after its current segments, with exit code 75. `tiered maintain` works
    without a log directory, so a pause does not stop it.

    Example: tiered-uploader pause flights --log-dir /var/lib/tieredlog --reason "moving the bucket"
    """
    directory = _paused_directory(flags, config_path)
    clock = SystemClock()
    names = topics or (ALL_TOPICS,)
    known = directory.topics()
    for name in topics:
        if name not in known:
            raise UnknownTopicError(
                f"there is no topic {name} in {directory.path}", hint=_names_hint("its topics are", known)
            )

    def paused(before: Mapping[str, Pause]) -> Mapping[str, Pause]:
        new = Pause(clock.now_ms(), reason)
        found = {name: before.get(name, new) for name in names}
        return {**before, **{name: Pause(each.since_ms, reason or each.reason) for name, each in found.items()}}

    _change_pauses(directory, paused, as_json=as_json, dry_run=dry_run)


@program.command()
@click.argument("topics", nargs=-1)
@_options(*_PLACE)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def resume(topics: tuple[str, ...], as_json: bool, dry_run: bool, config_path: str | None, **flags: Any) -> None:
    """Continue uploads of TOPICS, or of all topics."""
    directory = _paused_directory(flags, config_path)

    def resumed(before: Mapping[str, Pause]) -> Mapping[str, Pause]:
        for name in topics:
            if name not in before:
                together = ALL_TOPICS in before
                hint = "all topics are paused together: resume without a name" if together else "no topic is paused"
                raise ConfigError(
                    f"topic {name} has no pause of its own",
                    hint=_names_hint("paused are", before) if before and not together else hint,
                )
        return {name: each for name, each in before.items() if topics and name not in topics}

    done = (", ".join(topics) or "all topics") if directory.pauses() else ""
    _change_pauses(directory, resumed, as_json=as_json, dry_run=dry_run, resumed=done)


def _paused_directory(flags: dict[str, Any], config_path: str | None) -> LogDirectory:
    del flags["debug"]
    settings = _settings(flags, config_path)
    if settings.log_dir is None:
        raise ConfigError("no log directory is named", hint="pass --log-dir DIR, or set TIERED_LOG_DIR")
    directory = LogDirectory(settings.log_dir, clock=SystemClock(), ids=SystemIds())
    _ = directory.volume_id  # raises for a directory that is no log
    directory.scan()  # afterwards a broker's topics are known
    return directory


def _names_hint(what: str, names: Iterable[str]) -> str:
    return f"{what} {', '.join(sorted(names)[:NAMES]) or 'none'}"


def _change_pauses(
    directory: LogDirectory,
    edit: Callable[[Mapping[str, Pause]], Mapping[str, Pause]],
    *,
    as_json: bool,
    dry_run: bool,
    resumed: str = "",
) -> None:
    """Store the pauses that ``edit`` makes of the present ones, unless it is a dry run. Print the pauses.

    ``resumed``: names of resumed topics, printed first; ``""``: none.
    """
    if dry_run:
        pauses = edit(directory.pauses())
    else:
        directory.pause(edit)
        pauses = directory.pauses()
    found: dict[str, Any] = {
        "message_type": "pauses",
        "now_ms": SystemClock().now_ms(),
        "dry_run": dry_run,
        "paused": health.pauses_as_json(pauses),
    }
    lines = [f"{'would resume' if dry_run else 'resumed'} {resumed}"] if resumed else []
    text = "\n".join([*lines, *health.paused_lines(found)]) or f"no uploads from {directory.path} are paused"
    click.echo(json.dumps(found) if as_json else f"dry run: {text}" if dry_run else text)


def _run(serving: Coroutine[Any, Any, Exit]) -> Exit:
    """Run a service to its end on an event loop of its own, with daemon threads. Return the exit."""
    with asyncio.Runner(loop_factory=DaemonLoop) as runner:
        return runner.run(serving)


def _configure_logs(settings: Settings, debug: bool, *, brief: bool = False) -> str:
    """Configure logs, and return their format, "text" or "json".

    The default is text on a terminal and for a one-shot run (``brief``), otherwise JSON.
    """
    form = settings.log_format or ("text" if brief or sys.stderr.isatty() else "json")
    telemetry.configure(form, debug=debug, brief=brief)
    return form


def _end(ending: Exit, form: str) -> NoReturn:
    """Print why the program ends, and end it. In JSON mode the event ``ended`` has reported it."""
    if ending.code and form == "text":
        complain(ending.reason, ending.hint)
    sys.exit(ending.code)


def main() -> None:
    """Run the program. An error of the product is printed as one line and a hint, and sets the exit status."""
    debug = "--debug" in sys.argv or os.environ.get("TIERED_DEBUG", "") not in ("", "0", "false")
    try:
        if "_TIERED_UPLOADER_COMPLETE" in os.environ:
            program.main(prog_name="tiered-uploader")
        # Not Group.main: it turns a closed pipe into a failure.
        with program.make_context("tiered-uploader", sys.argv[1:]) as context:
            program.invoke(context)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.exit(0)
    except _NO_ARGUMENTS as help_text:
        click.echo(help_text.format_message(), err=True)
        sys.exit(ConfigError.exit_code)
    except Exception as cause:
        if debug and not isinstance(cause, click.ClickException):
            raise
        error = as_error(cause, "tiered-uploader")
        output = Output(json_mode="--json" in sys.argv)
        with contextlib.suppress(StdoutClosed, TieredError):  # the output itself may have failed
            output.failure(error)
            output.flush()
        sys.exit(error.exit_code)


def _committed(counts: Mapping[TopicPartition, int]) -> str:
    """Return a sentence such as ``2,000 records committed in t-0, t-1``. ``counts``: number by partition."""
    total = sum(counts.values())
    if not total:
        return "nothing to commit: this disk notes that the bucket holds all; `tiered check` asks the bucket"
    return f"{counted(total, 'record')} committed in {shown([str(tp) for tp in sorted(counts)])}"
