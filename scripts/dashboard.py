"""Write deploy/grafana/tieredlog.json, the dashboard, from one table of panels; or draw the board as SVG.

``dashboard.py --draw URL FILE`` draws what a Prometheus at URL has of the last minutes. It is no picture of Grafana.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen
from xml.sax.saxutils import escape

TARGET = Path(__file__).parents[1] / "deploy" / "grafana" / "tieredlog.json"
WHERE = 'instance=~"$instance"'


class Panel(NamedTuple):
    """One panel: its title, Grafana's unit, and an expression for each legend."""

    title: str
    unit: str
    lines: dict[str, str]

    def everywhere(self) -> Panel:
        """Return the panel without the choice of instances: the upkeep runs elsewhere."""
        return self._replace(lines={legend: each.replace(f"{{{WHERE}}}", "") for legend, each in self.lines.items()})


def _gauge(title: str, unit: str, fold: str, label: str, name: str) -> Panel:
    return Panel(title, unit, {f"{{{{{label}}}}}": f"{fold} by ({label}) (tiered_{name}{{{WHERE}}})"})


def _rate(title: str, unit: str, label: str, name: str, function: str = "rate") -> Panel:
    rate = f"{function}(tiered_{name}{{{WHERE}}}[$__rate_interval])"
    return Panel(title, unit, {f"{{{{{label}}}}}": f"sum by ({label}) ({rate})"})


SLOWEST = f"sum by (op, le) (rate(tiered_store_request_seconds_bucket{{{WHERE}}}[$__rate_interval]))"
ROWS: dict[str, tuple[Panel, ...]] = {
    "Is it safe?": (
        _gauge("Age of the only copy", "s", "max", "topic", "oldest_unuploaded_seconds"),
        _gauge("Bytes on this disk only", "bytes", "sum", "topic", "upload_lag_bytes"),
        Panel(
            "Partitions that do not upload",
            "none",
            {name: f"sum(tiered_{name}{{{WHERE}}})" for name in ("refused", "fenced", "paused")},
        ),
        _gauge("Disk in use", "percentunit", "max", "instance", "disk_used_ratio"),
    ),
    "Work": (
        _rate("Records appended", "cps", "topic", "end_offset", "deriv"),
        _rate("Records committed", "cps", "topic", "uploaded_offset", "deriv"),
        _rate("Bytes uploaded", "Bps", "instance", "uploaded_bytes_total"),
        _rate("Commits", "ops", "result", "commit_total"),
        _gauge("Segments waiting", "none", "sum", "topic", "upload_lag_segments"),
        _rate("Errors", "ops", "kind", "upload_errors_total"),
        _rate("Slowed down by the store", "ops", "instance", "store_slow_downs_total"),
        _gauge("Dirtiest log of the cleaner", "percentunit", "max", "instance", "cleaner_max_dirty_ratio"),
    ),
    "Groups": (
        _gauge("Oldest record that a group has not read", "s", "max", "group", "group_lag_seconds").everywhere(),
        _gauge("Records that a group has not read", "none", "sum", "group", "group_lag_records").everywhere(),
    ),
    "Store": (
        _rate("Requests", "reqps", "op", "store_requests_total"),
        Panel("Slowest hundredth of requests", "s", {"{{op}}": f"histogram_quantile(0.99, {SLOWEST})"}),
        _gauge("Oldest request", "s", "max", "instance", "store_oldest_request_seconds"),
        Panel(
            "Memory of uploads and maintenance",
            "bytes",
            {name: f"sum(tiered_memory_{name}_bytes{{{WHERE}}})" for name in ("used", "limit")},
        ),
    ),
    "Upkeep": (
        _rate("Maintenance", "ops", "kind", "maintenance_actions_total").everywhere(),
        _rate("Bytes rewritten", "Bps", "instance", "maintenance_written_bytes_total").everywhere(),
        Panel(
            "Since the last",
            "s",
            {
                "round of maintenance": "time() - max(tiered_maintenance_last_round_timestamp_seconds)",
                "check": "time() - max(tiered_check_last_end_timestamp_seconds)",
            },
        ),
        Panel(
            "Trouble",
            "none",
            {
                "failed partitions": "sum(tiered_maintenance_failed_partitions)",
                "lost leases": "sum(increase(tiered_maintenance_fenced_total[$__rate_interval]))",
                "check errors": "max(tiered_check_errors)",
                "out of service": f"sum(tiered_directory_partitions_out_of_service{{{WHERE}}})",
            },
        ),
    ),
}
"""Panels by row. ``tests/integration/deploy`` compares the names with those that a daemon exports."""


def dashboard() -> dict[str, Any]:
    """Return the document for Grafana's import."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
        y += 1
        for number, panel in enumerate(row):
            targets = [
                {"refId": chr(65 + i), "expr": expression, "legendFormat": legend, "datasource": source}
                for i, (legend, expression) in enumerate(panel.lines.items())
            ]
            defaults = {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}
            place = {"h": 7, "w": 6, "x": number % 4 * 6, "y": y + number // 4 * 7}
            panels.append(
                {
                    "type": "timeseries",
                    "title": panel.title,
                    "datasource": source,
                    "gridPos": place,
                    "fieldConfig": {"defaults": defaults, "overrides": []},
                    "targets": targets,
                }
            )
        y += (len(row) + 3) // 4 * 7
    for number, each in enumerate(panels, 1):
        each["id"] = number
    instance = {
        "name": "instance",
        "type": "query",
        "datasource": source,
        "query": "label_values(tiered_build_info, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
    return {
        "title": "tieredlog",
        "uid": "tieredlog",
        "schemaVersion": 39,
        "tags": ["tieredlog"],
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, instance]},
        "panels": panels,
    }


def as_text() -> str:
    """Return the file: one line for each panel."""
    document = dashboard()
    lines = ",\n".join(json.dumps(each) for each in document.pop("panels"))
    return json.dumps(document, indent=1).removesuffix("\n}") + f',\n "panels": [\n{lines}\n]}}\n'


def expressions(interval: str) -> list[str]:
    """Return all expressions as Prometheus takes them, for all instances. ``interval``: range of the rates."""
    lines = [each for row in ROWS.values() for panel in row for each in panel.lines.values()]
    return [_plain(each, interval) for each in lines]


def _plain(expression: str, interval: str) -> str:
    return expression.replace("$instance", ".*").replace("$__rate_interval", interval)


# -- the drawing -------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, GAP = 300, 150, 12
COLOURS = ("#2f6fb0", "#d9822b", "#3a9151", "#c23b3b", "#7b5ea7", "#8c6d46")
UNITS = {"bytes": " B", "Bps": " B/s", "s": " s", "percentunit": "", "none": ""}


def ask(url: str, verb: str, **words: str | float) -> Any:
    """Return the result of a query to the interface of a Prometheus."""
    with urlopen(f"{url}/api/v1/{verb}?{urlencode(words)}", timeout=30) as answer:  # noqa: S310 - the caller's address
        return json.load(answer)["data"]["result"]


def _short(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def draw(url: str, *, seconds: int = 240, step: int = 2, interval: str = "20s") -> str:
    """Return the board as SVG, from the data of a Prometheus."""
    parts: list[str] = []
    end = float(ask(url, "query", query="time()")[0])
    span = {"start": end - seconds, "end": end, "step": step}
    y = GAP
    for title, row in ROWS.items():
        parts.append(f'<text x="{GAP}" y="{y + 14}" class="row">{escape(title)}</text>')
        y += 24
        for number, panel in enumerate(row):
            x, top = GAP + number % 4 * (WIDTH + GAP), y + number // 4 * (HEIGHT + GAP)
            series = [
                (legend, each)
                for legend, expression in panel.lines.items()
                for each in ask(url, "query_range", query=_plain(expression, interval), **span)
            ]
            parts += _panel(panel, series, x, top)
        y += (len(row) + 3) // 4 * (HEIGHT + GAP)
    style = (
        "text{font:11px sans-serif;fill:#333}.row{font-size:14px;font-weight:bold}.small{font-size:9px;fill:#666}"
        ".box{fill:#fff;stroke:#ccc}polyline{fill:none;stroke-width:1.5}"
    )
    width = 4 * (WIDTH + GAP) + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}">'
    back = f'<rect width="{width}" height="{y}" fill="#f4f5f5"/>'
    return "\n".join([head, f"<style>{style}</style>", back, *parts, "</svg>"]) + "\n"


def _panel(panel: Panel, series: list[tuple[str, dict[str, Any]]], x: int, y: int) -> list[str]:
    parts = [
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="3" class="box"/>',
        f'<text x="{x + 8}" y="{y + 16}">{escape(panel.title)}</text>',
    ]
    points = [[(float(at), float(value)) for at, value in each["values"] if value != "NaN"] for _, each in series]
    top = max((value for line in points for _, value in line), default=0) or 1
    first = min((at for line in points for at, _ in line), default=0)
    last = max((at for line in points for at, _ in line), default=1)
    parts.append(f'<text x="{x + WIDTH - 8}" y="{y + 16}" text-anchor="end" class="small">'
                 f'{_short(top)}{UNITS.get(panel.unit, "/s")}</text>')  # fmt: skip
    for number, line in enumerate(points):
        placed = [
            (x + 8 + (WIDTH - 16) * (at - first) / ((last - first) or 1), y + 118 - 92 * max(0.0, value) / top)
            for at, value in line
        ]
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in placed)
        parts.append(f'<polyline points="{path}" stroke="{colour}"/>')
    x_legend = x + 8
    for number, (legend, each) in enumerate(series[:5]):
        name = next((value for value in each["metric"].values()), legend) if "{{" in legend else legend
        parts.append(f'<text x="{x_legend}" y="{y + 138}" class="small" style="fill:{COLOURS[number % len(COLOURS)]}">'
                     f'{escape(name)}</text>')  # fmt: skip
        x_legend += 12 + 5 * len(name)
    return parts


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--draw", url, target]:
            Path(target).write_text(draw(url))
        case _:
            TARGET.write_text(as_text())
