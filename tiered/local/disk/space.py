"""The disk reserve: appends stop while there is still room to close, to upload and to repair."""

from __future__ import annotations

from pathlib import Path

from tiered.config import LogConfig
from tiered.errors import DiskFullError
from tiered.local.disk.files import Files


class DiskReserve:
    """Reserve of a log directory. It calls ``statvfs`` once per ``disk_check_bytes`` appended, and at each tick.

    An append subtracts its bytes from ``left``, and calls :meth:`refill` once that is below 0.
    """

    __slots__ = ("_config", "_directory", "_files", "_reserve", "left")

    def __init__(self, files: Files, directory: Path, config: LogConfig) -> None:
        self._files = files
        self._directory = directory
        self._config = config
        self._reserve = 0
        self.left = 0

    def account(self, size_bytes: int) -> None:
        """Subtract an append from ``left``; call :meth:`refill` below 0, and raise as it does."""
        self.left -= size_bytes
        if self.left < 0:
            self.refill()

    def refill(self) -> None:
        """Check the file system. Raises DiskFullError below the reserve; appends go on once there is room again."""
        if not self.check():
            raise DiskFullError(
                f"{self._directory}: less than the reserve of {self._reserve} bytes is free",
                hint="free some space: `tiered disk drop TOPIC` deletes local copies of uploads",
            )

    def check(self) -> bool:
        """Check the file system; return True if appends may go on."""
        space = self._files.space(self._directory)  # two checks at once: either result is right
        if space is None:  # ramfs, some of FUSE: a full one fails the write itself
            self.left = self._config.disk_check_bytes
            return True
        self._reserve = self._config.reserve_bytes(space.total)
        room = space.free - self._reserve
        self.left = min(self._config.disk_check_bytes, room) if room > 0 else -1
        return room > 0
