"""Bytes in each tier over time, sampled while the demo runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import UploadCheckpoint

SAMPLE_S = 0.2


@dataclass(frozen=True, slots=True)
class Sample:
    """``seconds`` since the start; bytes of ``.log`` files on disk, and of segments committed in the store."""

    seconds: float
    local_bytes: int
    remote_bytes: int


@dataclass(slots=True)
class Sampler:
    """Samples both tiers from a thread until closed; ``mark`` notes an event for the picture."""

    log_dir: Path
    remote_bytes: int = 0
    samples: list[Sample] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    _started: float = field(default_factory=time.perf_counter)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts sampling."""
        self._thread = threading.Thread(target=self._run, name="demo-sampler", daemon=True)
        self._thread.start()

    def mark(self, what: str) -> None:
        """Notes that ``what`` happened now."""
        self.marks.append((time.perf_counter() - self._started, what))

    def close(self) -> None:
        """Takes a last sample and stops."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        local, committed = local_and_committed_bytes(self.log_dir)
        self.remote_bytes = max(self.remote_bytes, committed)
        self.samples.append(Sample(time.perf_counter() - self._started, local, self.remote_bytes))


def committed_ends(log_dir: Path) -> dict[str, int]:
    """Committed end per partition directory, from the checkpoint that the uploader writes after each read-back."""
    uploads = UploadCheckpoint(log_dir, PosixFiles()).read()
    return {str(tp): upload.end_offset for tp, upload in uploads.items()}


def local_and_committed_bytes(log_dir: Path) -> tuple[int, int]:
    """Bytes of all ``.log`` files below ``log_dir``, and of those wholly below the committed end."""
    ends = committed_ends(log_dir)
    local = committed = 0
    for folder in sorted(log_dir.glob("*-[0-9]*")):
        bases: list[tuple[int, int]] = []
        for path in folder.glob("*.log"):
            try:
                bases.append((int(path.name.split(".")[0]), path.stat().st_size))
            except (OSError, ValueError):
                continue
        bases.sort()
        local += sum(size for _, size in bases)
        for (_, size), following in zip(bases, [*bases[1:], None], strict=False):
            end = following[0] if following is not None else None
            if end is not None and end <= ends.get(folder.name, 0):
                committed += size
    return local, committed
