"""Settings of the uploader with the daemon's defaults. ``tiered.program.settings`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tiered.arguments import at_home
from tiered.config import MEMORY_BYTES, S3_WORDS, StoreLimits
from tiered.engine.drain import DrainMode
from tiered.engine.partition import COMMIT_WAIT_MS, DRAIN_MS, SEAL_IDLE_MS, UPLOADS, EngineLimits
from tiered.engine.runner import SCAN_MS
from tiered.errors import ConfigError
from tiered.program import settings
from tiered.program.maintenance_loop import EVERY_MS
from tiered.program.uploader_status import LAG_LIMIT_MS
from tiered.sidecar.mirror import HELD_BYTES, beside
from tiered.store.base import MIN_PART_BYTES
from tiered.store.location import StoreLocation
from tiered.store.unique_upload import MULTIPART_FROM_BYTES, PART_BYTES, PartSizes


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the uploader. Times are in milliseconds, sizes in bytes. Rates are per second, None: no limit.

    ``http``: (host, port), None: no HTTP server. ``drain``: records that are uploaded before the daemon ends. ``scan``:
    rest between two scans of the log directory. ``seal_idle``: age at which an active segment without a writer is
    sealed. ``uploads``: segments uploaded at once. ``commit_wait``: time that an uploaded segment waits for others that
    share its commit. ``lag_limit``: lag above which ``/readyz`` fails. ``sidecar``: a Kafka broker's log directory.
    """

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
    def limits(self) -> EngineLimits:
        """Return the limits of the upload engine."""
        return EngineLimits(uploads=self.uploads, commit_wait_ms=self.commit_wait, seal_idle_ms=self.seal_idle)

    @property
    def store_limits(self) -> StoreLimits:
        """Return the limits of requests to the store."""
        return StoreLimits(
            requests_per_second=self.requests_per_second, bytes_per_second=self.bytes_per_second, memory=self.memory
        )

    @property
    def sizes(self) -> PartSizes:
        """Return the part sizes of multipart uploads. Raises ConfigError for a part that is too small."""
        if self.part_size < MIN_PART_BYTES:
            raise ConfigError(
                f"part_size is {self.part_size}, and must be at least {MIN_PART_BYTES} bytes", hint="for example 16MiB"
            )
        return PartSizes(self.multipart_above, self.part_size)

    def place(self) -> tuple[Path, StoreLocation]:
        """Return (log directory, store). Raises ConfigError if one is not set or wrong, or if they overlap."""
        if self.log_dir is None:
            raise ConfigError("no log directory is named", hint="pass --log-dir DIR, or set TIERED_LOG_DIR")
        if self.remote is None:
            raise ConfigError("no remote is named", hint="pass --remote s3://bucket/prefix, or set TIERED_REMOTE")
        store = StoreLocation.parse(self.remote, **{name: getattr(self, name) for name in S3_WORDS})
        store.refuse_overlap(self.log_dir, *([self.sidecar] if self.sidecar is not None else []))
        return self.log_dir, store

    def restart_needed(self, new: Settings) -> list[str]:
        """Return the names of the settings that differ in ``new`` and cannot change without a restart."""
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
        "maintain_every",
    }
)
"""Settings that ``SIGHUP`` changes in a running daemon."""


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None) -> Settings:
    """Return the settings. The command line wins over the environment, which wins over the configuration file.

    ``flags``: values from the command line, None if not given. ``config``: path of the file, None without one. Raises
    ConfigError for an unknown or wrong setting, and for a file that cannot be read.
    """
    settings.refuse_unknown_variables(environ)
    settings.refuse_unknown_daemon_variables(environ)
    known = (*settings.PLACE, *settings.DAEMON)
    found = settings.read(known, flags, environ, config, {"": settings.SETTINGS, settings.TABLE: known})
    _drop_foreign(found)
    merged = {name: each.value for name, each in found.items()}
    if "log_dir" in merged:
        merged["log_dir"] = at_home("", Path(merged["log_dir"]))
    if "drain" in merged:
        merged["drain"] = DrainMode(merged["drain"])
    if "sidecar" in merged:
        merged.setdefault("log_dir", beside(merged["sidecar"]))
    return Settings(**merged)


def _drop_foreign(found: dict[str, settings.Value]) -> None:
    """Remove S3 settings of the environment if the store is not S3. Raises ConfigError for those given elsewhere."""
    try:
        scheme = StoreLocation.parse(found["remote"].value).scheme if "remote" in found else "s3"
    except ConfigError:
        return  # opening the store raises it
    for name in S3_WORDS if scheme != "s3" else ():
        if name not in found:
            continue
        if found[name].source != "environment":
            raise ConfigError(
                f"{found[name].place}: {name} does not apply to the remote {found['remote'].value}",
                hint=f"remove {name}, or name an s3:// remote ({found['remote'].place} names this one)",
            )
        del found[name]
