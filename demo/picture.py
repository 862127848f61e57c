"""The picture that is drawn of a run of the demo."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from demo.flights import airports
from demo.positions import Landings
from demo.tiers import Sampler

NAMED_AIRPORTS = 12
"""The map names those where most aircraft are ..."""
APART_DEGREES = 1.5
"""... and none so near to one that has its name already."""

Delays = dict[tuple[str, int], tuple[int, int]]
Marks = list[tuple[float, str]]


def draw(path: Path, sampler: Sampler, delays: Delays, landings: Landings | None) -> None:
    """Writes the picture (PNG): tiers over time, mean delay by carrier and month, and below, with ``landings``, the
    records of the stream over time and where each aircraft landed last."""
    import matplotlib as mpl  # noqa: PLC0415  (half a second, and only here)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    rows: list[Any] = [["tiers", "tiers"], ["delays", "delays"], ["stream", "map"]][: 3 if landings else 2]
    figure, axes = plt.subplot_mosaic(
        rows,
        figsize=(11, 14 if landings else 9.5),
        height_ratios=[1, 1.35, 1.15][: len(rows)],
        width_ratios=[1, 1.5],
        layout="constrained",
    )
    _draw_tiers(axes["tiers"], sampler)
    figure.colorbar(_draw_delays(axes["delays"], delays), ax=axes["delays"], label="minutes", shrink=0.9)
    if landings:
        _draw_stream(axes["stream"], landings)
        _draw_map(axes["map"], landings.aircraft)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_tiers(axes: Any, sampler: Sampler) -> None:
    seconds = [s.seconds for s in sampler.samples]
    local = [s.local_bytes / 1e6 for s in sampler.samples]
    remote = [s.remote_bytes / 1e6 for s in sampler.samples]
    axes.fill_between(seconds, remote, step="post", alpha=0.55, color="#2a6f97", label="committed in the store")
    axes.step(seconds, local, where="post", color="#d1495b", linewidth=2, label="on local disk")
    _draw_marks(axes, sampler.marks, max([*local, *remote, 1.0]))
    axes.set(
        title="Bytes in each tier while the log is written, killed, lost and restored", xlabel="seconds", ylabel="MB"
    )
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, 0.82), frameon=False)


def _draw_marks(axes: Any, marks: Marks, height: float) -> None:
    for at, (when, what) in enumerate(marks):
        axes.axvline(when, color="#555555", linewidth=0.8, linestyle=":")
        axes.text(when, height * (1.26 - 0.06 * (at % 3)), f" {what}", fontsize=8, color="#333333", va="top")
    axes.set_ylim(0, height * 1.3)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_delays(axes: Any, delays: Delays) -> Any:
    carriers = sorted({carrier for carrier, _ in delays})
    grid = [[_mean(delays.get((carrier, month))) for month in range(1, 13)] for carrier in carriers]
    image = axes.imshow(grid, aspect="auto", cmap="RdYlBu_r", vmin=-5, vmax=40)
    axes.set_yticks(range(len(carriers)), carriers)
    axes.set_xticks(range(12), list("JFMAMJJASOND"))
    axes.set_title("Mean departure delay in minutes, by carrier and month: computed by Spark from the log")
    for y, line in enumerate(grid):
        for x, value in enumerate(line):
            if not math.isnan(value):
                axes.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=8, color="#222222")
    return image


def _mean(sums: tuple[int, int] | None) -> float:
    """Mean of (sum, count); NaN where there is nothing to divide by."""
    return sums[0] / sums[1] if sums and sums[1] else math.nan


def _draw_stream(axes: Any, landings: Landings) -> None:
    seconds = [at for at, _ in landings.samples]
    thousands = [records / 1e3 for _, records in landings.samples]
    axes.fill_between(seconds, thousands, step="post", alpha=0.55, color="#2a6f97")
    _draw_marks(axes, landings.marks, max([*thousands, 1.0]))
    axes.set_xlim(0, seconds[-1] * 1.2)
    axes.set(title="The stream of positions, killed and started again", xlabel="seconds", ylabel="thousand records")


def _draw_map(axes: Any, aircraft: dict[str, int]) -> None:
    places = airports()
    found = sorted(((count, *places[code], code) for code, count in aircraft.items() if code in places), reverse=True)
    axes.scatter(
        [x for _, x, _, _ in found],
        [y for _, _, y, _ in found],
        s=[count * 3 for count, _, _, _ in found],
        color="#2a6f97",
        alpha=0.5,
        linewidth=0,
    )
    named: list[tuple[float, float]] = []
    for count, x, y, code in found[:NAMED_AIRPORTS]:
        if all(math.hypot(x - other, y - above) > APART_DEGREES for other, above in named):
            axes.annotate(f"{code} {count}", (x, y), fontsize=8, ha="center", va="center", color="#222222")
            named.append((x, y))
    missing = sum(aircraft.values()) - sum(count for count, *_ in found)
    axes.set(
        title=f"Where {sum(aircraft.values()):,} aircraft landed last, from the export",
        xlabel=f"longitude ({missing} of them at airports whose place the data set does not have)",
        ylabel="latitude",
    )
    axes.spines[["top", "right"]].set_visible(False)
