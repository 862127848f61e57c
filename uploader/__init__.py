"""Carries sealed segments of a tieredlog directory to the bucket: a daemon, a one-shot command, or a component.

::

    tiered-uploader run --log-dir data/log --remote s3://acme-logs/prod          # the daemon
    tiered-uploader sync --wait --log-dir data/log --remote s3://acme-logs/prod  # once, for cron and preStop hooks
    tiered.open("data/log", remote="s3://acme-logs/prod", uploader=Uploader())   # inside the application
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uploader.component import Uploader
    from uploader.config import Settings

__all__ = ["Settings", "Uploader"]


if not TYPE_CHECKING:  # a checker that saw it would take a misspelt name for one that it gives

    def __getattr__(name: str) -> Any:
        """Loads the component when it is first named: ``import uploader`` alone touches neither asyncio nor an SDK."""
        if name == "Uploader":
            from uploader.component import Uploader  # noqa: PLC0415 - lazy on purpose

            return Uploader
        if name == "Settings":
            from uploader.config import Settings  # noqa: PLC0415 - lazy on purpose

            return Settings
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
