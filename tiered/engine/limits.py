"""Limits of the engine. ``SIGHUP`` replaces them as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from tiered.errors import ConfigError

MAX_COMMIT_SEGMENTS = 64
"""Rows of one commit. Uploads run at most this many segments ahead of the committed end."""

UPLOADS = 4
COMMIT_WAIT_MS = 250
CLAIMS = 16
COMMITS = 16
DRAIN_MS = 25_000
REPEAT_REPORT_MS = 300_000
DISK_WARN_PERCENT = 80
SEAL_IDLE_MS = 600_000


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of the engine. ``uploads`` run at once; one partition has over a quarter of them only if no other waits.

    ``seal_idle_ms``: an active segment whose first record is older than this is sealed by the uploader if ``.lock`` is
    free (-1: never).
    """

    uploads: int = UPLOADS
    commit_segments: int = MAX_COMMIT_SEGMENTS
    commit_wait_ms: int = COMMIT_WAIT_MS
    claims: int = CLAIMS
    commits: int = COMMITS
    repeat_report_ms: int = REPEAT_REPORT_MS
    seal_idle_ms: int = SEAL_IDLE_MS
    disk_warn_percent: int = DISK_WARN_PERCENT

    def __post_init__(self) -> None:
        for name in ("uploads", "commit_segments", "claims", "commits"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.commit_segments > MAX_COMMIT_SEGMENTS:
            raise ConfigError(f"commit_segments is {self.commit_segments}; it must be at most {MAX_COMMIT_SEGMENTS}")

    @property
    def share(self) -> int:
        """Return the number of uploads that one partition may have while another one waits."""
        return max(1, self.uploads // 4)
