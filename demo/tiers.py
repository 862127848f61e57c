"""Bytes in each tier over time, sampled while the demo runs, and the picture that is drawn of them."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploads import UploadCheckpoint

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


def draw(path: Path, sampler: Sampler, delays: dict[tuple[str, int], tuple[int, int]]) -> None:
    """Writes the picture: tiers over time above, mean delay by carrier and month below (PNG)."""
    import matplotlib as mpl  # noqa: PLC0415  (half a second, and only here)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(11, 9.5), height_ratios=[1, 1.35], layout="constrained")
    seconds = [s.seconds for s in sampler.samples]
    local = [s.local_bytes / 1e6 for s in sampler.samples]
    remote = [s.remote_bytes / 1e6 for s in sampler.samples]
    top.fill_between(seconds, remote, step="post", alpha=0.55, color="#2a6f97", label="committed in the store")
    top.step(seconds, local, where="post", color="#d1495b", linewidth=2, label="on local disk")
    height = max([*local, *remote, 1.0])
    for at, (when, what) in enumerate(sampler.marks):
        top.axvline(when, color="#555555", linewidth=0.8, linestyle=":")
        top.text(when, height * (1.26 - 0.06 * (at % 3)), f" {what}", fontsize=8, color="#333333", va="top")
    top.set(
        title="Bytes in each tier while the log is written, killed, lost and restored", xlabel="seconds", ylabel="MB"
    )
    top.set_ylim(0, height * 1.3)
    top.legend(loc="upper left", bbox_to_anchor=(0.0, 0.82), frameon=False)
    top.spines[["top", "right"]].set_visible(False)

    carriers = sorted({carrier for carrier, _ in delays})
    grid = [[_mean(delays.get((carrier, month))) for month in range(1, 13)] for carrier in carriers]
    image = bottom.imshow(grid, aspect="auto", cmap="RdYlBu_r", vmin=-5, vmax=40)
    bottom.set_yticks(range(len(carriers)), carriers)
    bottom.set_xticks(range(12), list("JFMAMJJASOND"))
    bottom.set_title("Mean departure delay in minutes, by carrier and month: computed by Spark from the log")
    for y, line in enumerate(grid):
        for x, value in enumerate(line):
            if not math.isnan(value):
                bottom.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=8, color="#222222")
    figure.colorbar(image, ax=bottom, label="minutes", shrink=0.9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _mean(sums: tuple[int, int] | None) -> float:
    """Mean of (sum, count); NaN where there is nothing to divide by."""
    return sums[0] / sums[1] if sums and sums[1] else math.nan
