"""The ratios as a picture: ours beside each peer, and what is aimed at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Drawing

from bench.measure import Figure


def draw(path: Path, figures: Sequence[Figure], targets: Mapping[str, float]) -> None:
    """A bar for each row with a peer, on a scale of powers; the line at 1 is the peer, a mark the target."""
    mpl.rcParams["svg.hashsalt"] = "bench"
    rows = [(each, each.ratio) for each in reversed(figures) if each.ratio is not None]
    drawing = Drawing(figsize=(11, 1.2 + 0.32 * len(rows)), layout="constrained")
    axes = drawing.subplots()
    for at, (each, ratio) in enumerate(rows):
        low, high = each.spread or (ratio, ratio)
        axes.barh(at, ratio, color="#3b6ea5" if ratio >= 1 else "#c0652b")
        axes.plot([low, high], [at, at], color="black", linewidth=1)
        target = targets.get(each.what)
        if target is not None:
            axes.plot(target, at, marker="|", markersize=14, color="black")
    axes.axvline(1.0, color="grey", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [f"{each.what}  |  {each.peer}" for each, _ in rows], fontsize=8)
    axes.set_xlabel("times as fast as the peer (1: as fast); thin line: least and most of the rounds; |: target")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110)
