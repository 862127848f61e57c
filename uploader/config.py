"""Settings of the uploader and where each comes from: flag, then ``TIERED_*``, then the TOML file, then the default.

::

    # tiered.toml
    log_dir = "/var/lib/tiered"
    remote = "s3://acme-logs/${STAGE}"      # ${NAME} is taken from the environment

    [uploader]
    http = "127.0.0.1:9464"
    seal_idle = "10m"

The environment variable of what ``tiered`` has, too, as ``log_dir`` and ``remote``, is ``TIERED_LOG_DIR`` and so on,
that of any other setting ``TIERED_UPLOADER_{NAME}``. Unknown keys are refused. Credentials are no settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tiered.arguments import at_home
from tiered.config import MEMORY_BYTES, S3_WORDS, StoreLimits, parse_duration_ms
from tiered.errors import ConfigError
from tiered.format.keys import check_topic_name
from tiered.plan.tiering.facts import DrainMode
from tiered.plan.tiering.limits import COMMIT_WAIT_MS, DRAIN_MS, SEAL_IDLE_MS, UPLOADS, Limits
from tiered.program import settings
from tiered.program.store_limits import PARSERS, refuse_unknown_variables, size, variable, whole
from tiered.program.upkeep import EVERY_MS
from tiered.program.uploader_status import LAG_LIMIT_MS
from tiered.store.base import MIN_PART_BYTES
from tiered.store.location import StoreLocation
from tiered.store.puts import MULTIPART_FROM_BYTES, PART_BYTES
from tiered.tiering.aio_run import SCAN_MS
from tiered.tiering.mirror import HELD_BYTES, beside
from tiered.tiering.steps import PartSizes
from uploader.logs import FORMATS

SHARED = tuple(setting.name for setting in settings.SETTINGS)
"""Keys outside the table ``[uploader]``: those of all programs; ``json``, ``progress``, ``debug`` mean nothing here."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, checked. ``http`` is None for no server; rates are per second, None for no limit."""

    log_dir: Path | None = None
    remote: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    expected_bucket_owner: str | None = None
    sse: str | None = None
    sse_kms_key_id: str | None = None
    http: tuple[str, int] | None = ("127.0.0.1", 9464)
    drain: DrainMode = DrainMode.ALL
    drain_timeout: int = DRAIN_MS
    scan: int = SCAN_MS
    seal_idle: int = SEAL_IDLE_MS
    uploads: int = UPLOADS
    commit_wait: int = COMMIT_WAIT_MS
    lag_limit: int = LAG_LIMIT_MS
    bytes_per_second: int | None = None
    requests_per_second: int | None = None
    memory: int = MEMORY_BYTES
    multipart_above: int = MULTIPART_FROM_BYTES
    part_size: int = PART_BYTES
    partition_labels: bool = True
    log_format: str | None = None
    sidecar: Path | None = None
    sidecar_compacted: tuple[str, ...] = ()
    sidecar_held: int = HELD_BYTES
    maintain: bool = False
    maintain_every: int = EVERY_MS

    @property
    def limits(self) -> Limits:
        """What the rules go by."""
        return Limits(uploads=self.uploads, commit_wait_ms=self.commit_wait, seal_idle_ms=self.seal_idle)

    @property
    def store_limits(self) -> StoreLimits:
        """What the store may be asked for."""
        return StoreLimits(
            requests_per_second=self.requests_per_second, bytes_per_second=self.bytes_per_second, memory=self.memory
        )

    @property
    def sizes(self) -> PartSizes:
        """How large segments are sent."""
        if self.part_size < MIN_PART_BYTES:
            raise ConfigError(f"part_size is {self.part_size}; a part has at least {MIN_PART_BYTES} bytes")
        return PartSizes(self.multipart_above, self.part_size)

    def place(self) -> tuple[Path, StoreLocation]:
        """Log directory and store. Raises ConfigError if one is not named."""
        if self.log_dir is None:
            raise ConfigError("no log directory is named", hint="--log-dir DIR, or TIERED_LOG_DIR")
        if self.remote is None:
            raise ConfigError("no remote is named", hint="--remote s3://bucket/prefix, or TIERED_REMOTE")
        store = StoreLocation.parse(self.remote, **{name: getattr(self, name) for name in S3_WORDS})
        store.refuse_overlap(self.log_dir, *([self.sidecar] if self.sidecar is not None else []))
        return self.log_dir, store

    def restart_needed(self, new: Settings) -> list[str]:
        """Settings that differ and that a running daemon does not take over."""
        names = [field.name for field in fields(self) if getattr(self, field.name) != getattr(new, field.name)]
        return [name for name in names if name not in RELOADABLE]


RELOADABLE = frozenset(
    {
        "drain",
        "drain_timeout",
        "scan",
        "seal_idle",
        "uploads",
        "commit_wait",
        "lag_limit",
        "bytes_per_second",
        "requests_per_second",
        "memory",
        "multipart_above",
        "part_size",
        "http",
        "maintain_every",
    }
)
"""What ``SIGHUP`` changes in a running daemon."""


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None) -> Settings:
    """The settings; ``flags`` holds those given on the command line (None: not given). Raises ConfigError."""
    settings.refuse_unknown_variables(environ)
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    layers = [_from_file(config, environ) if config else {}, _from_environment(environ)]
    layers.append({name: ("--" + name.replace("_", "-"), value) for name, value in flags.items() if value is not None})
    for layer in layers:
        for name, (origin, value) in layer.items():
            merged[name] = _checked(name, value, origin)
            origins[name] = origin
    _drop_foreign(merged, origins)
    if "sidecar" in merged:
        merged.setdefault("log_dir", beside(merged["sidecar"]))
    return Settings(**merged)


def _drop_foreign(merged: dict[str, Any], origins: Mapping[str, str]) -> None:
    """Some words are those of S3. The environment is many programs', so there they may stand beside another store; a
    flag or a file was written for this one.
    """
    try:
        scheme = StoreLocation.parse(merged["remote"]).scheme if "remote" in merged else "s3"
    except ConfigError:
        return  # whoever needs the store says so
    for name in S3_WORDS if scheme != "s3" else ():
        if name not in merged:
            continue
        if origins[name] != variable(name):
            raise ConfigError(
                f"{origins[name]}: {name} means nothing to the remote {merged['remote']}",
                hint=f"take {name} away, or name an s3:// remote ({origins['remote']} names this one)",
            )
        del merged[name]


def parse_http(value: str) -> tuple[str, int] | None:
    """``host:port`` (``[::1]:9464`` for IPv6), or ``off``."""
    if value.lower() in ("off", "none", ""):
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{value!r} is not host:port", hint="127.0.0.1:9464, or off")
    return host.strip("[]") or "127.0.0.1", int(port)


def _drain(value: str) -> DrainMode:
    try:
        return DrainMode(value)
    except ValueError:
        words = ", ".join(mode.value for mode in DrainMode)
        raise ConfigError(f"{value!r} is none of {words}") from None


def _log_format(value: str) -> str:
    if value not in FORMATS:
        raise ConfigError(f"{value!r} is none of {', '.join(FORMATS)}")
    return value


def _duration(value: int | str) -> int:
    found = parse_duration_ms(value)
    if found < 1:
        raise ConfigError(f"{value!r} is not longer than nothing")
    return found


def _or_never(value: int | str) -> int:
    return -1 if str(value) in ("never", "-1") else _duration(value)


def _boolean(value: bool | int | str) -> bool:
    found = value if isinstance(value, bool) else settings.boolean(str(value))
    if found is None:
        raise ConfigError(f"{value!r} is neither true nor false")
    return found


def _part_size(value: int | str) -> int:
    found = size(value)
    if found < MIN_PART_BYTES:
        raise ConfigError(
            f"{value!r} is too small: a part has at least {MIN_PART_BYTES} bytes", hint="for example 16MiB"
        )
    return found


def _topics(value: str) -> tuple[str, ...]:
    return tuple(check_topic_name(name.strip()) for name in _text(value).split(","))


def _path(value: str | Path) -> Path:
    return at_home("", value if isinstance(value, Path) else Path(_text(value)))


def _text(value: str) -> str:
    if not value:  # an unset variable of a script; as a path it would be the current directory
        raise ConfigError("it is empty", hint="give it a value, or leave it out")
    return value


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "log_dir": _path,
    "remote": _text,
    **dict.fromkeys(S3_WORDS, _text),
    "http": parse_http,
    "drain": _drain,
    "drain_timeout": _duration,
    "scan": _duration,
    "seal_idle": _or_never,
    "uploads": whole,
    "commit_wait": _duration,
    "lag_limit": _duration,
    **PARSERS,
    "multipart_above": size,
    "part_size": _part_size,
    "partition_labels": _boolean,
    "log_format": _log_format,
    "sidecar": _path,
    "sidecar_compacted": _topics,
    "sidecar_held": size,
    "maintain": _boolean,
    "maintain_every": _duration,
}


_TEXTS = frozenset({"log_dir", "remote", *S3_WORDS, "http", "drain", "log_format", "sidecar", "sidecar_compacted"})


def _checked(name: str, value: Any, origin: str) -> Any:
    if not isinstance(value, (str, int, Path)):
        raise ConfigError(f"{origin}: {name} is {value!r}, not a text or a number")
    if isinstance(value, int) and name in _TEXTS:
        raise ConfigError(f"{origin}: {name} is {value!r}, not a text")
    try:
        return _PARSERS[name](value)
    except ConfigError as error:
        place = origin if origin.startswith("--") or origin == variable(name) else f"{name} in {origin}"
        raise ConfigError(f"{place}: {error.message}", hint=error.hint) from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    refuse_unknown_variables(environ)
    found = settings.from_environment(environ, {variable(name): name for name in _PARSERS})
    return {name: (given.key, given.value) for name, given in found.items()}


def _from_file(path: Path, environ: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    found = settings.from_file(path, environ, {"": SHARED, "uploader": tuple(_PARSERS)})
    return {name: (str(path), given.value) for name, given in found.items() if name in _PARSERS}
