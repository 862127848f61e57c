"""Table of all settings and the sources of their values: flag, then ``TIERED_*``, then the TOML file.

::

    # tiered.toml, named by --config or TIERED_CONFIG; never picked up by itself
    log_dir = "/var/lib/tieredlog"
    remote = "s3://acme-logs/${STAGE}"     # ${NAME} is taken from the environment
    region = "eu-central-1"

    [uploader]                             # the daemon's own settings; some hold for work by hand, too
    seal_idle = "10m"

``SETTINGS`` are those of all programs, with variables such as ``TIERED_LOG_DIR``. ``DAEMON`` are those of the table,
with variables such as ``TIERED_UPLOADER_SEAL_IDLE``. An unknown key is refused with a suggestion, never ignored.
Credentials are not settings: they come from the SDK's own chain (environment, profile, role).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from tiered.arguments import at_home
from tiered.config import MEMORY_BYTES, MIB, MIN_MEMORY_BYTES, S3_WORDS, StoreLimits, parse_bytes, parse_duration_ms
from tiered.errors import ConfigError, NotFoundError
from tiered.format.keys import check_topic_name

F = TypeVar("F", bound=Callable[..., Any])

MAX_CONFIG_BYTES = 1024 * 1024
"""Largest configuration file in bytes."""

MAX_SETTING_CHARS = 4096
"""Longest value of one setting in characters."""

PROGRESS_MODES = ("auto", "plain", "none", "json")
TABLE = "uploader"
FOREIGN_VARIABLES = ("TIERED_UPLOADER_", "TIERED_SPARK_", "TIERED_TEST_", "TIERED_CONFIG", "TIERED_COMPLETE")

_TOML = 'for example: remote = "s3://bucket/prefix"'
_SERVICE_LINK = re.compile(
    r"TIERED_UPLOADER_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)"
)
"""Variables that Kubernetes sets in pods of a namespace with a Service named ``tiered-uploader``."""

Scalar = str | bool | int | None
Tables = Mapping[str, Sequence["Setting"]]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its key, the parser of its value, one sentence, its default, and its table of the file.

    ``kind``: what a value is, with its unit. ``example``: a value for the sample file where there is no default.
    ``has_option``: the command line has it.
    """

    name: str
    parse: Callable[[Any], Any]
    about: str
    default: Scalar = None
    table: str = ""
    kind: str = "text"
    example: str = ""
    has_option: bool = True

    @property
    def variable(self) -> str:
        """Return the name of the setting's environment variable."""
        return f"TIERED_{self.table.upper()}_{self.name.upper()}" if self.table else f"TIERED_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """Return the name of the setting's command line option."""
        return "--" + self.name.replace("_", "-")

    @property
    def example_hint(self) -> str:
        """Return the hint for an error about this setting: an example value, or the sentence about it."""
        shown = self.example or ("" if self.default is None else str(self.default))
        return f"for example {shown}" if shown else self.about

    @property
    def help(self) -> str:
        """Return the help text of the setting's option: the sentence about it, with the default."""
        default = str(self.default).lower() if isinstance(self.default, bool) else self.default
        return self.about[0].upper() + self.about[1:] + ("." if default is None else f". Default {default}.")


@dataclass(frozen=True, slots=True)
class Value:
    """Value of a setting. ``source``: ``flag``, ``environment``, ``file`` or ``default``. ``text``: the value as
    given. ``place``: name of the option, variable or file.
    """

    value: Any
    source: str = "default"
    place: str = ""
    text: Scalar = None

    @property
    def origin(self) -> str:
        """Return where the value comes from, as ``tiered config`` prints it."""
        return f"{self.source} {self.place}".strip()


# -- how values are read -----------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """Return a setting's text. Raises ConfigError if it is no text, empty or too long, or has a NUL character."""
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is not a text")
    if not value:  # an unset variable of a script; as a path it means the current directory
        raise ConfigError("it is empty", hint="give it a value, or leave it out")
    if len(value) > MAX_SETTING_CHARS or "\0" in value:
        raise ConfigError("it is too long or holds a NUL character")
    return value


def boolean(word: str) -> bool | None:
    """Return True for ``1``, ``true``, ``yes``, ``on``, and False for ``0``, ``false``, ``no``, ``off``. None for other
    words.
    """
    lowered = word.strip().lower()
    return True if lowered in ("1", "true", "yes", "on") else False if lowered in ("0", "false", "no", "off") else None


def yes_or_no(value: Any) -> bool:
    """Return a setting's value as True or False. Raises ConfigError for other values."""
    found = value if isinstance(value, bool) else boolean(str(value))
    if found is None:
        raise ConfigError(f"{value!r} is neither true nor false", hint="write 1 or 0")
    return found


def one_of(*words: str) -> Callable[[Any], str]:
    """Return a parser of a setting's value that accepts only these words. It raises ConfigError for others."""

    def parse(value: Any) -> str:
        found = text(value)
        if found not in words:
            hint = suggestion(found, words)
            raise ConfigError(f"{found!r} is none of {', '.join(words)}", hint=hint)
        return found

    return parse


def whole(value: int | str) -> int:
    """Return a setting's value as a whole number. Raises ConfigError unless it is at least 1."""
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) < 1:
        raise ConfigError(f"{value!r} is not a whole number of at least 1")
    return int(value)


def size(value: int | str) -> int:
    """Return a size such as ``16MiB`` in bytes. Raises ConfigError unless it is at least 1."""
    found = parse_bytes(value)
    if found < 1:
        raise ConfigError(f"{value!r} is not a positive size")
    return found


def _memory(value: int | str) -> int:
    found = size(value)
    if found < MIN_MEMORY_BYTES:
        least = f"give at least {MIN_MEMORY_BYTES // MIB}MiB"
        raise ConfigError(f"{value!r} is too small: a single maintenance action needs more memory", hint=least)
    return found


def _part_size(value: int | str) -> int:
    from tiered.store.base import MIN_PART_BYTES  # noqa: PLC0415 - a program without a store starts without it

    found = size(value)
    if found < MIN_PART_BYTES:
        raise ConfigError(
            f"{value!r} is too small: a part of an upload has at least {MIN_PART_BYTES} bytes", hint="for example 16MiB"
        )
    return found


def _duration(value: int | str) -> int:
    found = parse_duration_ms(value)
    if found < 1:
        raise ConfigError(f"the duration {value!r} must be longer than 0")
    return found


def _or_never(value: int | str) -> int:
    return -1 if str(value) in ("never", "-1") else _duration(value)


def _topics(value: Any) -> tuple[str, ...]:
    return tuple(check_topic_name(name.strip()) for name in text(value).split(","))


def _path(value: Any) -> Path:
    return at_home("", value if isinstance(value, Path) else Path(text(value)))


def parse_http(value: Any) -> tuple[str, int] | None:
    """Return (host, port) from text such as ``host:port`` or ``[::1]:9464``; None for ``off``.

    Raises ConfigError for other text.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is not a text")
    if value.lower() in ("off", "none", ""):
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{value!r} is not host:port", hint="for example 127.0.0.1:9464, or off")
    return host.strip("[]") or "127.0.0.1", int(port)


# -- the table ---------------------------------------------------------------------------------------------------------

_SIZE, _TIME, _SWITCH, _NUMBER = "size, as 64MiB", "duration, as 10m", "true or false", "number"
SETTINGS = (
    Setting("log_dir", text, "log directory: one of ours or any Kafka log directory", example="/var/lib/tieredlog"),
    Setting(
        "remote",
        text,
        "where the remote tier is: s3://bucket/prefix?endpoint=URL&region=NAME, file:///dir",
        kind="URL",
        example="s3://acme-logs/prod",
    ),
    Setting(
        "endpoint_url",
        text,
        "endpoint of an S3-compatible store; in the URL: endpoint",
        kind="URL",
        example="http://127.0.0.1:9000",
        has_option=False,
    ),
    Setting("region", text, "region of the bucket; in the URL: region", example="eu-central-1", has_option=False),
    Setting(
        "expected_bucket_owner",
        text,
        "account that must own the bucket, others are refused; in the URL: owner",
        kind="account id",
        example="123456789012",
        has_option=False,
    ),
    Setting(
        "sse",
        text,
        "encryption of all that is written, otherwise the bucket's own; in the URL: sse",
        kind="AES256 or aws:kms",
        example="aws:kms",
        has_option=False,
    ),
    Setting(
        "sse_kms_key_id",
        text,
        "KMS key of the encryption, otherwise the account's key for S3; in the URL: kms_key",
        kind="ARN or id",
        example="alias/log",
        has_option=False,
    ),
    Setting("json", yes_or_no, "print JSON instead of text", False, kind=_SWITCH),
    Setting(
        "progress",
        one_of(*PROGRESS_MODES),
        "how a long run shows its progress",
        "auto",
        kind=", ".join(PROGRESS_MODES),
    ),
    Setting("debug", yes_or_no, "show tracebacks", False, kind=_SWITCH),
)
PLACE = tuple(setting for setting in SETTINGS if setting.name in ("log_dir", "remote", *S3_WORDS))
"""Settings of all programs that may be in the table, too. Their variables stay the same."""
LIMITS = (
    Setting("bytes_per_second", size, "limit of the traffic with the store", table=TABLE, kind=_SIZE, example="50MiB"),
    Setting(
        "requests_per_second", whole, "limit of the requests to the store", table=TABLE, kind=_NUMBER, example="500"
    ),
    Setting(
        "memory",
        _memory,
        "bytes that uploads and maintenance hold at once, together",
        f"{MEMORY_BYTES // MIB}MiB",
        TABLE,
        _SIZE,
    ),
)
"""Limits of requests and memory for one machine: for its daemon and for commands."""
DAEMON = (
    Setting(
        "http",
        parse_http,
        "address of health, metrics and status, or off",
        "127.0.0.1:9464",
        TABLE,
        "host:port",
    ),
    Setting(
        "drain",
        one_of("inflight", "sealed", "all"),
        "what SIGTERM still sends",
        "all",
        TABLE,
        "inflight, sealed or all",
    ),
    Setting("drain_timeout", _duration, "time that a drain may take", "25s", TABLE, _TIME),
    Setting("scan", _duration, "rest between two looks at the log directory", "5s", TABLE, _TIME),
    Setting(
        "seal_idle",
        _or_never,
        "age at which an active segment without a writer is sealed, or never",
        "10m",
        TABLE,
        _TIME,
    ),
    Setting("uploads", whole, "segments uploaded at once", 4, TABLE, _NUMBER),
    Setting(
        "commit_wait",
        _duration,
        "time that an uploaded segment waits for others that share its commit",
        "250ms",
        TABLE,
        _TIME,
        has_option=False,
    ),
    Setting("lag_limit", _duration, "lag above which /readyz fails and a log is not safe", "1h", TABLE, _TIME),
    *LIMITS,
    Setting(
        "multipart_above",
        size,
        "size of a segment above which it is uploaded in parts",
        "64MiB",
        TABLE,
        _SIZE,
        has_option=False,
    ),
    Setting("part_size", _part_size, "size of a part, at least 5MiB", "16MiB", TABLE, _SIZE, has_option=False),
    Setting(
        "partition_labels",
        yes_or_no,
        "metrics of each partition, not only of each topic",
        True,
        TABLE,
        _SWITCH,
        has_option=False,
    ),
    Setting(
        "log_format",
        one_of("json", "text"),
        "format of log lines; otherwise text on a terminal, json elsewhere",
        table=TABLE,
        kind="json or text",
        example="json",
    ),
    Setting(
        "sidecar",
        _path,
        "log directory of a running Kafka broker; links to its files go into log_dir, or DIR-tiered",
        table=TABLE,
        example="/var/lib/kafka/data",
    ),
    Setting(
        "sidecar_compacted",
        _topics,
        "compacted topics that the sidecar takes, too, as they are now",
        table=TABLE,
        kind="names, with commas",
        example="users,prices",
    ),
    Setting("sidecar_held", size, "bytes that are linked and not uploaded yet, at most", "64GiB", TABLE, _SIZE),
    Setting("maintain", yes_or_no, "maintain all topics of the bucket beside the uploads", False, TABLE, _SWITCH),
    Setting("maintain_every", _duration, "rest between two rounds of maintenance", "10m", TABLE, _TIME),
)
"""Settings of the daemon."""


# -- where values come from --------------------------------------------------------------------------------------------


def read(
    wanted: Sequence[Setting], flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None, tables: Tables
) -> dict[str, Value]:
    """Return the values that are given for the settings ``wanted``, by name: of a flag, the environment or the file.

    ``tables``: tables of the TOML file to read, each with all settings that it may have. ``""`` is for keys outside any
    table. A later table has precedence. Raises ConfigError for a wrong value or unknown key.
    """
    by_name = {setting.name: setting for setting in wanted}
    found: dict[str, Value] = {}
    if config is not None:
        found |= _from_file(config, environ, tables, by_name)
    for setting in wanted:
        if environ.get(setting.variable):
            found[setting.name] = Value(environ[setting.variable], "environment", setting.variable)
        if flags.get(setting.name) is not None:
            found[setting.name] = Value(flags[setting.name], "flag", setting.flag)
    return {name: _parsed(by_name[name], given) for name, given in found.items()}


def _parsed(setting: Setting, given: Value) -> Value:
    place = f"{setting.name} in {given.place}" if given.source == "file" else given.place
    if not isinstance(given.value, str | int | Path):
        raise ConfigError(f"{place} is {given.value!r}, not a text or a number", hint=setting.example_hint)
    try:
        return Value(setting.parse(given.value), given.source, given.place, str(given.value))
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}", hint=error.hint or setting.example_hint) from error


def _from_file(
    path: Path, environ: Mapping[str, str], tables: Tables, wanted: Mapping[str, Setting]
) -> dict[str, Value]:
    document = _read_toml(path)
    named = {*tables, *([TABLE] if isinstance(document.get(TABLE), dict) else [])}
    others = {key: raw for key, raw in document.items() if key not in named}
    found: dict[str, Value] = {}
    for table, settings in tables.items():
        content = document.get(table, {}) if table else others
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: the key {table} must be a table", hint=f"write [{table}] on a line of its own")
        known, seen = [setting.name for setting in settings], set[str]()
        for key, raw in content.items():
            name = key.replace("-", "_")
            if name not in known:
                raise _unknown_key(path, key, known, raw)
            if name in seen:
                raise ConfigError(f"{path}: the key {key} is given twice, with - and with _", hint="keep one of them")
            seen.add(name)
            if name in wanted:
                value = _expand(raw, environ, f"{path}: {key}") if isinstance(raw, str) else raw
                found[name] = Value(value, "file", str(path))
    return found


def resolve(flags: Mapping[str, Scalar], environ: Mapping[str, str], config: Path | None) -> dict[str, Value]:
    """Return the value and origin of every setting of the program ``tiered``."""
    refuse_unknown_variables(environ)
    found = read(SETTINGS, flags, environ, config, {"": SETTINGS})
    return {setting.name: found.get(setting.name, Value(setting.default)) for setting in SETTINGS}


def store_limits(flags: Mapping[str, str | None], environ: Mapping[str, str], config: Path | None) -> StoreLimits:
    """Return the limits of requests, traffic and memory for a command."""
    refuse_unknown_daemon_variables(environ)
    found = read(LIMITS, flags, environ, config, {TABLE: (*PLACE, *DAEMON)})
    return StoreLimits(**{name: each.value for name, each in found.items()})


def refuse_unknown_daemon_variables(environ: Mapping[str, str]) -> None:
    """Raise ConfigError if a ``TIERED_UPLOADER_*`` variable is no setting of the daemon."""
    known = [setting.variable for setting in (*PLACE, *DAEMON)]
    for name in sorted(environ):
        if name.startswith("TIERED_UPLOADER_") and name not in known and not _SERVICE_LINK.fullmatch(name):
            hint = suggestion(name, known) or f"known variables: {', '.join(sorted(known))}"
            raise ConfigError(f"the environment variable {name} is not known", hint=hint)


def refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """Raise ConfigError if a ``TIERED_*`` variable looks like a misspelt setting. Others are left alone."""
    known = [*(setting.variable for setting in SETTINGS), "TIERED_CONFIG"]
    for variable in sorted(environ):
        if not variable.startswith("TIERED_") or variable in known or variable.startswith(FOREIGN_VARIABLES):
            continue
        close = difflib.get_close_matches(variable, known, n=1, cutoff=0.85)
        if close:
            raise ConfigError(f"the environment variable {variable} is not known", hint=f"did you mean {close[0]}?")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean x?`` for the known word most like ``word``, ``""`` if none is like it."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def daemon_values(environ: Mapping[str, str], config: Path | None) -> dict[str, Value]:
    """Return the value and origin of every setting of the daemon, without command line options."""
    refuse_unknown_daemon_variables(environ)
    found = read(DAEMON, {}, environ, config, {TABLE: (*PLACE, *DAEMON)})
    return {setting.name: found.get(setting.name, Value(setting.default)) for setting in DAEMON}


def _read_toml(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        setting = "a topic's setting is --set NAME=VALUE, and of `tiered topic set` NAME=VALUE alone"
        hint = setting if "=" in path.name else "correct --config"
        raise NotFoundError(f"the configuration file {path} does not exist", hint=hint) from None
    except OSError as cause:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {cause.strerror}", hint="correct --config"
        ) from cause
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"the configuration file {path} is larger than {MAX_CONFIG_BYTES} bytes",
            hint="correct --config, if it names another file",
        )
    try:
        return tomllib.loads(data.decode("utf-8-sig"))  # Windows editors write a byte order mark
    except UnicodeDecodeError as cause:
        raise ConfigError(
            f"the configuration file {path} is not UTF-8 at byte {cause.start}", hint="save it as UTF-8"
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as cause:
        raise ConfigError(f"the configuration file {path} is not TOML: {cause}", hint=_TOML) from None


def _unknown_key(path: Path, key: str, known: Sequence[str], raw: object) -> ConfigError:
    lowered, name = key.lower(), key.replace("-", "_")
    if isinstance(raw, dict):
        hint = suggestion(key, [TABLE]) or f"the only table is [{TABLE}]"
    elif any(word in lowered for word in ("secret", "password", "access_key", "token", "credential")):
        hint = "credentials come from the AWS environment, profile or role, never from this file"
    elif name in {setting.name for setting in DAEMON}:
        hint = f"{name} belongs in the table [{TABLE}]"
    else:
        hint = suggestion(name, known) or "known keys: " + ", ".join(known)
    return ConfigError(f"{path}: the key {key} is not known", hint=hint)


def _expand(text: str, environ: Mapping[str, str], where: str) -> str:
    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environ:
            raise ConfigError(
                f"{where} needs the environment variable {name}, which is not in the environment", hint=f"set {name}"
            )
        return environ[name]

    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", value_of, text)


_BY_NAME = {each.name: each for each in (*PLACE, *DAEMON)}


def setting_option(name: str, *names: str, **more: Any) -> Callable[[F], F]:
    """Return the click option of the setting ``name``. Its help is the setting's sentence and default.

    ``names``: option names in place of the usual one. ``more``: other arguments of ``click.option``.
    """
    setting = _BY_NAME[name]
    return click.option(*(names or (setting.flag,)), help=setting.help, **more)


LIMIT_OPTIONS = tuple(setting_option(each.name) for each in LIMITS)
"""Options of limits, with the same words on every command line."""


def with_limits(command: F) -> F:
    """Add all options of ``LIMIT_OPTIONS`` to a command."""
    for option in reversed(LIMIT_OPTIONS):
        command = option(command)
    return command
