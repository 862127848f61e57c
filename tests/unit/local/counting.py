"""The real disk, counting the bytes that are read of ``.log`` files."""

from __future__ import annotations

from pathlib import Path

from tests.support.faulty_files import FaultyFiles


class CountingFiles(FaultyFiles):
    """``log_bytes``: read of logs through handles; ``small_bytes``: of all other files."""

    def __init__(self) -> None:
        super().__init__()
        self.log_bytes = 0
        self.small_bytes = 0

    def read_into(self, handle: int, buffer: bytearray | memoryview, position: int) -> int:
        count = super().read_into(handle, buffer, position)
        if self._paths[handle].suffix == ".log":
            self.log_bytes += count
        else:
            self.small_bytes += count
        return count

    def read(self, path: Path) -> bytes:
        data = super().read(path)
        self.small_bytes += len(data)
        return data
