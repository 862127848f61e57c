"""Figures of an open log under the names that the uploader's ``/metrics`` uses: ``tiered_``, base units, ``_total``.

A figure is read when it is asked for; nothing is counted twice, and no server and no client library is needed: hand
:func:`render` to whatever serves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PREFIX = "tiered_"


class Metric(NamedTuple):
    """One figure. ``labels`` in a fixed order; a name that ends in ``_total`` only grows while the log is open."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, object]:
        """The object that ``--json`` prints."""
        return {"name": self.name, "value": self.value, "labels": dict(self.labels)}


def metric(name: str, value: float, labels: Mapping[str, str] | None = None) -> Metric:
    """``name`` without the prefix."""
    return Metric(PREFIX + name, value, tuple((labels or {}).items()))


def render(metrics: Iterable[Metric]) -> str:
    """Prometheus's text format (0.0.4), one type line per name."""
    by_name: dict[str, list[Metric]] = {}
    for each in metrics:
        by_name.setdefault(each.name, []).append(each)
    lines = []
    for name, group in by_name.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f"{name}{_labels(each)} {_number(each.value)}" for each in group]
    return "".join(f"{line}\n" for line in lines)


def _labels(each: Metric) -> str:
    if not each.labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in each.labels)
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
