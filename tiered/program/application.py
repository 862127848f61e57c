"""Parts that all commands share: global options, which may stand anywhere on the line, settings, output, clocks.

A command that changes something must check :attr:`Application.dry_run`, and ask with :func:`confirm`.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from tiered.arguments import at_home
from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.errors import ConfigError
from tiered.model import TopicPartition
from tiered.program.output import Output
from tiered.program.settings import PROGRESS_MODES, SETTINGS, Value, resolve, suggestion

T = TypeVar("T")
MAX_PARTITION_DIGITS = 9
"""Most digits of a partition number that are parsed."""
SENTENCE = 1_000
"""Most characters of a first sentence that a group's help shows: all of it."""
STORE_DEADLINE_SECONDS = 15.0
"""Seconds after which a command does not repeat a request to the store. One attempt may take as long."""

EXITS: Mapping[int, str] = {
    0: "done",
    1: "failed",
    2: "usage or configuration",
    10: "not found",
    11: "locked or fenced",
    12: "credentials or permission",
    13: "damaged",
    75: "try again later",
}
"""Exit codes of every command. A command has words of its own for some of them."""
_ABOUT = {setting.name: setting.about for setting in SETTINGS}


class Application:
    """Settings and output streams of one run of a command. :func:`pass_application` makes it.

    ``flags``: options of the command line, by name. Raises ConfigError for a wrong setting, NotFoundError if the file
    of ``--config`` is missing.
    """

    def __init__(self, flags: dict[str, Any]) -> None:
        if flags.get("config") == "":  # an unset variable of a script would silently skip the file
            raise ConfigError("--config is empty", hint="give it a value, or leave it out")
        self.dry_run = bool(flags.get("dry_run"))
        self.yes = bool(flags.get("yes"))
        config = flags.get("config") or os.environ.get("TIERED_CONFIG")
        self.config: Path | None = at_home("--config", Path(str(config))) if config else None
        self.values: dict[str, Value] = resolve(flags, os.environ, self.config)
        # The failure path must print in the mode that the file or the environment sets.
        flags.setdefault("json", self.flag("json"))
        flags.setdefault("debug", self.flag("debug"))
        output = flags.get("output")
        self.out = output if isinstance(output, Output) else Output()
        self.out.json_mode = self.flag("json")
        self.out.quiet = bool(flags.get("quiet", False))
        self.out.verbosity = int(flags.get("verbose", 0))
        self.clock: Clock = SystemClock()
        self.ids: IdSource = SystemIds()

    def text(self, name: str) -> str | None:
        """Return the value of the setting ``name`` as text, None if it is not set."""
        value = self.values[name].value
        return str(value) if value is not None else None

    def flag(self, name: str) -> bool:
        return bool(self.values[name].value)

    @property
    def log_dir(self) -> Path | None:
        """Return the path of the log directory, None if none was given."""
        text = self.text("log_dir")
        return at_home("the log directory", Path(text)) if text is not None else None

    @property
    def remote(self) -> str | None:
        """Return the URL of the bucket, None if none was given."""
        return self.text("remote")

    def need_log_dir(self) -> Path:
        """Return the path of the log directory. Raises ConfigError if none was given."""
        if self.log_dir is None:
            raise ConfigError("no log directory was named", hint="pass --log-dir DIR or set TIERED_LOG_DIR")
        return self.log_dir

    def need_remote(self) -> str:
        """Return the URL of the bucket. Raises ConfigError if none was given."""
        if self.remote is None:
            raise ConfigError("no remote tier was named", hint="pass --remote URL or set TIERED_REMOTE")
        return self.remote

    def need_a_tier(self) -> None:
        """Raise ConfigError if neither a log directory nor a bucket was given."""
        if self.log_dir is None and self.remote is None:
            raise ConfigError(
                "no log was named",
                hint="pass --log-dir DIR, --remote URL or both, or set TIERED_LOG_DIR or TIERED_REMOTE",
            )


class FiniteFloat(click.FloatRange):
    """Type of an option: a finite number. ``click.FloatRange`` would accept NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return found


def pass_application(function: Callable[..., T]) -> Callable[..., T]:
    """Decorate a command so that it gets its :class:`Application` as first argument. Its result stays the exit code."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        flags = click.get_current_context().find_root().obj
        return function(Application(flags), *args, **kwargs)

    return call


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Store an option of the command line. The option nearest to the command's end wins."""
    name = parameter.name or ""
    source = context.get_parameter_source(name)
    if source is click.core.ParameterSource.COMMANDLINE:
        context.find_root().obj[name] = value


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        # Imported late, because it slows down each start.
        from tiered.program.platforms import version_lines  # noqa: PLC0415

        for line in version_lines():
            click.echo(line)
        context.exit()


def global_options() -> list[click.Option]:
    """Return new global options. Every command takes them, so they may stand anywhere on the line."""
    kwargs: dict[str, Any] = {"expose_value": False, "callback": _remember}
    return [
        click.Option(["--log-dir"], metavar="DIR", help=_ABOUT["log_dir"], **kwargs),
        click.Option(["--remote"], metavar="URL", help=_ABOUT["remote"], **kwargs),
        click.Option(["--config"], metavar="FILE", help="settings in TOML (or TIERED_CONFIG)", **kwargs),
        click.Option(["--dry-run"], is_flag=True, help="show what would be changed, and change nothing", **kwargs),
        click.Option(["--yes"], is_flag=True, help="do not ask before a change", **kwargs),
        click.Option(["--json"], is_flag=True, help=_ABOUT["json"], **kwargs),
        click.Option(["--progress"], type=click.Choice(PROGRESS_MODES), help=_ABOUT["progress"], **kwargs),
        click.Option(["-q", "--quiet"], is_flag=True, help="no talk on stderr but warnings and errors", **kwargs),
        click.Option(["-v", "--verbose"], count=True, help="more talk on stderr", **kwargs),
        click.Option(["--debug"], is_flag=True, help=_ABOUT["debug"], **kwargs),
        click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="versions"
        ),
    ]


HELP_NAMES = ("-h", "--help")


class Command(click.Command):
    """Click command that also accepts the global options. They have a section of their own in its help.

    ``exits``: texts for its exit codes that differ from the usual ones.
    """

    def __init__(self, *args: Any, exits: Mapping[int, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.exits = exits or {}
        self.help = _laid_out(self.help)
        taken = {name for parameter in self.params for name in parameter.opts}
        self.global_params = [option for option in global_options() if not taken.intersection(option.opts)]
        self.params = [*self.params, *self.global_params]

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return ``-h`` and ``--help``. Click would use the names of its first context, which may be another."""
        return list(HELP_NAMES)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. A usage error names the command, whose help is the next step."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options into the help, then the global ones."""
        _format_sections(self, self.global_params, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes below the help text."""
        write_exits(formatter, self.exits)


class Group(click.Group):
    """Click group that suggests the right name for a misspelt command."""

    command_class = Command
    exits: Mapping[int, str] = {3: "done with warnings", 14: "offsets that no tier holds"}
    """Exit codes of some of its commands."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = _laid_out(self.help)
        self.global_params = global_options()
        self.params = [*self.params, *self.global_params]

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return ``-h`` and ``--help``. Click would use the names of its first context, which may be another."""
        return list(HELP_NAMES)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Without any, print the help on stderr and exit with status 2."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(ConfigError.exit_code)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does. Raises ConfigError with a hint for an unknown name."""
        need_command(self, ctx, args[0], "tiered-uploader")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the whole first sentence of its help. Click would shorten it."""
        write_commands(self, ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help, then the global options."""
        self.format_commands(ctx, formatter)
        _format_sections(self, self.global_params, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes below the help text."""
        write_exits(formatter, self.exits)


def need_command(group: click.Group, ctx: click.Context, name: str, *others: str) -> None:
    """Raise ConfigError with a hint if ``group`` has no command ``name``. ``others``: more names to suggest."""
    if not name.startswith("-") and group.get_command(ctx, name) is None:
        names = group.list_commands(ctx)
        hint = suggestion(name, [*names, *others]) or "commands: " + ", ".join(names)
        raise ConfigError(f"there is no command {ctx.command_path} {name}", hint=hint)


def write_exits(formatter: click.HelpFormatter, own: Mapping[int, str] | None = None) -> None:
    """Write the exit codes as the last section of a help text. ``own``: texts that differ from the usual ones."""
    codes = {**EXITS, **(own or {})}
    with formatter.section("Exit codes"):
        formatter.write_text("; ".join(f"{code} {codes[code]}" for code in sorted(codes)))


def write_commands(group: click.Group, context: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the commands of a group into the help, each with the whole first sentence of its own help."""
    found = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    rows = [(name, command.get_short_help_str(SENTENCE)) for name, command in found if command is not None]
    if rows:
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _laid_out(text: str | None) -> str | None:
    """Return the help text with click's mark for examples as a backspace character, not as the two characters ``\\b``.

    None stays None.
    """
    return None if text is None else text.replace("\\b\n", "\b\n")


def _format_sections(
    command: click.Command, shared: list[click.Option], context: click.Context, formatter: click.HelpFormatter
) -> None:
    own: list[tuple[str, str]] = []
    general: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            (general if parameter in shared else own).append(record)
    for title, records in (("Options", own), ("Global options", general)):
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def split_topic(text: str) -> tuple[str, int | None]:
    """Split ``TOPIC`` or ``TOPIC:PARTITION`` into (topic, partition or None). No topic name contains a colon.

    Raises ConfigError for an empty topic, and if the text after the colon is not a number.
    """
    topic, colon, partition = text.partition(":")
    if not topic:
        raise ConfigError(f"{text!r} names no topic", hint="write TOPIC or TOPIC:0")
    if not colon:
        return topic, None
    if not (partition.isascii() and partition.isdigit()) or len(partition) > MAX_PARTITION_DIGITS:
        raise ConfigError(
            f"{text!r} names no partition: after the colon, a number from 0 on is needed", hint="write TOPIC or TOPIC:0"
        )
    return topic, int(partition)


def topic_or_partition(text: str) -> str | TopicPartition:
    """Parse ``TOPIC`` to text, or ``TOPIC:PARTITION`` to a TopicPartition."""
    topic, partition = split_topic(text)
    return topic if partition is None else TopicPartition(topic, partition)


def confirm(app: Application, command: str, question: str) -> None:
    """Ask the user to confirm a change by ``command``, unless ``--yes`` was passed.

    Raises ConfigError if the answer is no, if there is no terminal, and in JSON mode.
    """
    if app.yes:
        return
    if not sys.stdin.isatty() or app.out.json_mode:
        raise ConfigError(
            f"{command} asks before it acts, and there is no terminal to ask on: {question}", hint="--yes answers yes"
        )
    if not click.confirm(question, err=True):
        raise ConfigError("nothing was done: the confirmation was not given", hint="--dry-run only shows the plan")


def one_partition(text: str) -> TopicPartition:
    """Parse ``TOPIC:P`` to a TopicPartition. Raises ConfigError for any other text."""
    topic, partition = split_topic(text)
    if partition is None:
        stem, dash, number = text.rpartition("-")
        like = f"{stem}:{number}" if stem and dash and number.isdigit() else f"{text}:0"
        raise ConfigError(f"{text} names no partition", hint=f"write {like}")
    return TopicPartition(topic, partition)
