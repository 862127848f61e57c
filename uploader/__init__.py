"""Uploader of a tieredlog directory's sealed segments: a daemon, a one-shot command, or a component.

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


if not TYPE_CHECKING:  # with it a type checker would accept every misspelt name

    def __getattr__(name: str) -> Any:
        """Import ``Uploader`` or ``Settings`` at its first use, and return it. Raises AttributeError for other names.

        So ``import uploader`` loads neither asyncio nor an SDK.
        """
        if name == "Uploader":
            from uploader.component import Uploader  # noqa: PLC0415 - lazy on purpose

            return Uploader
        if name == "Settings":
            from uploader.config import Settings  # noqa: PLC0415 - lazy on purpose

            return Settings
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
