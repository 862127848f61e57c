"""Figures of an open log under the names of the uploader's ``/metrics``: ``tiered_``, base units, ``_total``.

A figure is computed when it is requested. No server and no client library is needed: pass the text of :func:`render` to
any server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PREFIX = "tiered_"


class Metric(NamedTuple):
    """One figure. ``labels`` have a fixed order. A name ending in ``_total`` only grows while the log is open."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the object for ``--json``."""
        return {"name": self.name, "value": self.value, "labels": dict(self.labels)}


def metric(name: str, value: float, labels: Mapping[str, str] | None = None) -> Metric:
    return Metric(PREFIX + name, value, tuple((labels or {}).items()))


def render(metrics: Iterable[Metric]) -> str:
    """Return the figures in Prometheus's text format (0.0.4), with one type line for each name."""
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
