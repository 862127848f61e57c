"""Where each setting comes from: flag, then ``TIERED_*``, then the TOML file, then the default.

::

    # tiered.toml, named by --config or TIERED_CONFIG; never picked up by itself
    log_dir = "/var/lib/tiered"
    remote = "s3://acme-logs/${STAGE}"     # ${NAME} is taken from the environment
    region = "eu-central-1"

    [uploader]                             # belongs to tiered-uploader, which checks it

Unknown keys are refused with a suggestion: a setting that is silently ignored is worse than none. Credentials are
no settings; they come from the SDK's own chain (environment, profile, role). ``from_file`` and ``from_environment``
read for every program; ``resolve`` knows the settings of ``tiered``.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiered.errors import ConfigError, NotFoundError

MAX_CONFIG_BYTES = 1024 * 1024
"""Longest configuration file that is read."""

MAX_SETTING_CHARS = 4096
"""Longest value of one setting."""

PROGRESS_MODES = ("auto", "plain", "none", "json")
FOREIGN_TABLES = ("uploader",)
FOREIGN_VARIABLES = ("TIERED_UPLOADER_", "TIERED_SPARK_", "TIERED_TEST_", "TIERED_CONFIG", "TIERED_COMPLETE")

_TOML = 'for example: remote = "s3://bucket/prefix"'

Scalar = str | bool | int | None


@dataclass(frozen=True, slots=True)
class Given:
    """What a file or a variable says for one setting: ``key`` is the word that stands there."""

    value: Any
    key: str


def from_environment(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, Given]:
    """What the environment says, by setting. ``variables`` names each variable's; an empty one counts as absent."""
    return {name: Given(environ[variable], variable) for variable, name in variables.items() if environ.get(variable)}


def from_file(path: Path, environ: Mapping[str, str], tables: Mapping[str, Sequence[str]]) -> dict[str, Given]:
    """What the file says, by setting. ``tables`` holds the known settings of each table, ``""`` for those outside any;
    a later table is nearer. ``${NAME}`` is taken from ``environ``. Raises ``ConfigError`` for what is not known.
    """
    document = _read_toml(path)
    contents = {table: document.pop(table, {}) for table in tables if table}
    others = {key: raw for key, raw in document.items() if not (key in FOREIGN_TABLES and isinstance(raw, dict))}
    found: dict[str, Given] = {}
    for table, known in tables.items():
        content = contents[table] if table else others
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: {table} is not a table", hint=f"write [{table}] on a line of its own")
        found |= _from_table(path, content, environ, known)
    return found


def some_of_table(
    path: Path, environ: Mapping[str, str], table: str, names: Sequence[str], *, known: Sequence[str]
) -> dict[str, Given]:
    """What the file says for ``names`` in a table that belongs to another program, which checks the values of the rest.

    Raises ``ConfigError`` for a key that is none of ``known``: it may be one of ``names``, misspelt.
    """
    content = _read_toml(path).get(table, {})
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: {table} is not a table", hint=f"write [{table}] on a line of its own")
    for key in content:
        if key.replace("-", "_") not in known:
            raise _unknown_key(path, key, known)
    ours = {key: raw for key, raw in content.items() if key.replace("-", "_") in names}
    return _from_table(path, ours, environ, names)


def _from_table(
    path: Path, content: Mapping[str, Any], environ: Mapping[str, str], known: Sequence[str]
) -> dict[str, Given]:
    found: dict[str, Given] = {}
    for key, raw in content.items():
        name = key.replace("-", "_")
        if name not in known:
            raise _unknown_key(path, key, known)
        if name in found:
            raise ConfigError(f"{path}: the key {key} is given twice, with - and with _", hint="keep one of them")
        value = _expand(raw, environ, f"{path}: {key}") if isinstance(raw, str) else raw
        found[name] = Given(value, key)
    return found


def suggestion(word: str, known: Iterable[str]) -> str:
    """``did you mean x?`` or an empty text; the one place that words it."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def boolean(text: str) -> bool | None:
    """What a text says; None for one that says neither."""
    lowered = text.strip().lower()
    return True if lowered in ("1", "true", "yes", "on") else False if lowered in ("0", "false", "no", "off") else None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its key in the file, what it may be and what it means."""

    name: str
    kind: type[str] | type[bool]
    default: Scalar
    about: str
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"TIERED_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """Its option on the command line."""
        return "--" + self.name.replace("_", "-")


SETTINGS = (
    Setting("log_dir", str, None, "log directory: one of ours or any Kafka log directory"),
    Setting("remote", str, None, "where the remote tier is: s3://bucket/prefix, file:///dir, memory://name"),
    Setting("endpoint_url", str, None, "endpoint of an S3-compatible store"),
    Setting("region", str, None, "region of the bucket"),
    Setting("expected_bucket_owner", str, None, "account id that must own the bucket; others' are refused"),
    Setting("sse", str, None, "encryption of all that is written: AES256 or aws:kms; else the bucket's own"),
    Setting("sse_kms_key_id", str, None, "KMS key of it (ARN or id); else the account's key for S3"),
    Setting("json", bool, False, "print JSON instead of text"),
    Setting("progress", str, "auto", "how a long run shows that it lives", PROGRESS_MODES),
    Setting("debug", bool, False, "show tracebacks"),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and where it came from, as ``config show --origin`` prints it."""

    value: Scalar
    origin: str


def resolve(flags: Mapping[str, Scalar], environ: Mapping[str, str], config: Path | None) -> dict[str, Value]:
    """Every setting with its value and origin. Raises ``ConfigError`` for unknown keys and wrong values."""
    refuse_unknown_variables(environ)
    layers: list[dict[str, Value]] = [
        _from_flags(flags),
        _from_environment(environ),
        {} if config is None else _from_file(config, environ),
    ]
    resolved: dict[str, Value] = {}
    for setting in SETTINGS:
        found = next((layer[setting.name] for layer in layers if setting.name in layer), None)
        resolved[setting.name] = Value(setting.default, "default") if found is None else found
    return resolved


def refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """A misspelt ``TIERED_*`` variable is an error; one that resembles nothing belongs to somebody else."""
    known = [*(setting.variable for setting in SETTINGS), "TIERED_CONFIG"]
    for variable in sorted(environ):
        if not variable.startswith("TIERED_") or variable in known or variable.startswith(FOREIGN_VARIABLES):
            continue
        close = difflib.get_close_matches(variable, known, n=1, cutoff=0.85)
        if close:
            raise ConfigError(f"the environment variable {variable} is not known", hint=f"did you mean {close[0]}?")


def _from_flags(flags: Mapping[str, Scalar]) -> dict[str, Value]:
    layer = {}
    for name, value in flags.items():
        setting = _BY_NAME.get(name)
        if setting is not None:
            layer[name] = Value(_checked(setting, value, setting.flag), f"flag {setting.flag}")
    return layer


def _from_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    layer = {}
    for name, given in from_environment(environ, {setting.variable: setting.name for setting in SETTINGS}).items():
        setting, origin = _BY_NAME[name], f"environment {given.key}"
        value = _boolean(given.value, origin) if setting.kind is bool else given.value
        layer[name] = Value(_checked(setting, value, origin), origin)
    return layer


def _from_file(path: Path, environ: Mapping[str, str]) -> dict[str, Value]:
    layer = {}
    for name, given in from_file(path, environ, {"": [setting.name for setting in SETTINGS]}).items():
        setting, value = _BY_NAME[name], given.value
        if not isinstance(value, setting.kind):
            wanted = "a text" if setting.kind is str else "true or false"
            raise ConfigError(f"{path}: {given.key} is {value!r}, not {wanted}", hint=setting.about)
        layer[name] = Value(_checked(setting, value, f"{path}: {given.key}"), f"file {path}")
    return layer


def foreign_tables(path: Path | None) -> list[str]:
    """Tables of the file that belong to other programs, which check them themselves."""
    document = {} if path is None else _read_toml(path)
    return [name for name in FOREIGN_TABLES if name in document]


def _read_toml(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        hint = "a setting of a topic is --set NAME=VALUE" if "=" in path.name else "correct --config"
        raise NotFoundError(f"the configuration file {path} does not exist", hint=hint) from None
    except OSError as cause:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {cause.strerror}", hint="correct --config"
        ) from cause
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"the configuration file {path} is longer than {MAX_CONFIG_BYTES} bytes", hint="is it the right file?"
        )
    try:
        return tomllib.loads(data.decode("utf-8-sig"))  # editors of Windows put a byte order mark before it
    except UnicodeDecodeError as cause:
        raise ConfigError(
            f"the configuration file {path} is not UTF-8 at byte {cause.start}", hint="save it as UTF-8"
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as cause:
        raise ConfigError(f"the configuration file {path} is not TOML: {cause}", hint=_TOML) from None


def _unknown_key(path: Path, key: str, known: Sequence[str]) -> ConfigError:
    lowered = key.lower()
    if any(word in lowered for word in ("secret", "password", "access_key", "token", "credential")):
        hint = "credentials come from the AWS environment, profile or role, never from this file"
    else:
        hint = suggestion(key.replace("-", "_"), known) or "known keys: " + ", ".join(known)
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


def _boolean(text: str, where: str) -> bool:
    found = boolean(text)
    if found is None:
        raise ConfigError(f"{where} is {text!r}, neither true nor false", hint="write 1 or 0")
    return found


def _checked(setting: Setting, value: Scalar, where: str) -> Scalar:
    if isinstance(value, str):
        if not value:  # an unset variable of a script; as a path it would be the current directory
            raise ConfigError(f"{where} is empty", hint="give it a value, or leave it out")
        if len(value) > MAX_SETTING_CHARS or "\0" in value:
            raise ConfigError(f"{where} is too long or holds a NUL character")
        if setting.choices and value not in setting.choices:
            hint = suggestion(value, list(setting.choices)) or "one of " + ", ".join(setting.choices)
            raise ConfigError(f"{where} is {value!r}, which is no {setting.name} mode", hint=hint)
    return value
