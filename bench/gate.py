"""What fails ``make bench GATE=1``: a ratio far below the last one, or below parity where more is promised.

Pure: it is handed figures and the recorded ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.measure import Figure

KEPT = 0.75
"""Of its last recorded ratio a row keeps at least this part: what a busy machine moves is less."""

PARITY = 1.0

AT_MOST = "at most"
"""The peer of a row that is held to a limit and not to what was recorded; its ratio is the limit over ours."""

TARGETS: Mapping[str, float] = {
    "encode 100 B records, 16 KiB batches": 5.0,
    "encode 100 B records, 1 MiB batches": 4.5,
    "encode 1 KiB records, 16 KiB batches": 6.0,
    "encode 1 KiB records, 1 MiB batches": 6.0,
    "decode 100 B records, 16 KiB batches": 1.4,
    "decode 1 KiB records, 16 KiB batches": 1.2,
    "decode 100 B records to Arrow, four columns": 0.35,
    "encode 100 B records from Arrow, 1 MiB batches": 0.33,
    "encode 1 KiB records from Arrow, 1 MiB batches": 0.40,
    "scan and verify a segment": 0.65,
    "append one at a time, beside its write": 0.24,  # three times the CPU of its pwrite, and 1 us for locks and state
    "append one at a time through an appender, 100 B": 1.5,
    "append_many of 500, 100 B": 1.5,
    "read the local tier to records": 1.2,
    "recover a segment without a recovery point": 0.5,
    "upload of a segment and its indexes, CPU, beside a socket": 0.77,
    "upload of a segment and its indexes, CPU, beside boto3": 1.43,
    "seal, upload and commit on MinIO, CPU, beside a socket": 0.77,
    "seal, upload and commit on MinIO, CPU, beside boto3": 1.43,
    "cold read on MinIO, CPU, beside boto3": 1.25,
    "cold read on MinIO, CPU, beside obstore": 0.83,
    "cold read on MinIO, wall, beside obstore": 1.0,
}
"""The ratio that is aimed at, by row."""


def last_ratios(recorded: Mapping[str, Any]) -> dict[str, float]:
    """The ratios in what ``bench/figures.json`` holds, by row."""
    return {each["what"]: each["ratio"] for each in recorded.get("figures", ()) if each.get("ratio") is not None}


def failures(figures: Iterable[Figure], last: Mapping[str, float], targets: Mapping[str, float] = TARGETS) -> list[str]:
    """One sentence for each row that fails, in the order of ``figures``. A row without a peer cannot.

    A row counts with its best round: what else runs on the machine spoils some rounds, what got slower all of them.
    """
    found = []
    for figure in figures:
        if figure.ratio is None:
            continue
        if figure.peer == AT_MOST:
            if figure.ratio < PARITY:
                found.append(
                    f"{figure.what}: {figure.ours:.2f} {figure.unit}, {AT_MOST} {figure.theirs:.2f} is promised"
                )
            continue
        before = last.get(figure.what)
        best = max(figure.ratio, figure.spread[1]) if figure.spread is not None else figure.ratio
        if before is not None and best < KEPT * before:
            found.append(f"{figure.what}: {best:.2f}x of {figure.peer}, {before:.2f}x when it was recorded")
        elif targets.get(figure.what, 0.0) > PARITY > best:
            found.append(f"{figure.what}: {best:.2f}x of {figure.peer}, where {targets[figure.what]:.2f}x is promised")
    return found


def merged(recorded: Mapping[str, Any], measured: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The recorded rows with those that were measured in the place of theirs; new ones come last.

    Raises ValueError for two that were measured under one name: one would be lost.
    """
    new: dict[str, Mapping[str, Any]] = {}
    for each in measured:
        if each["what"] in new:
            raise ValueError(f"two rows are called {each['what']!r}")
        new[each["what"]] = each
    old = [new.pop(each["what"], each) for each in recorded.get("figures", ())]
    return [*old, *new.values()]
