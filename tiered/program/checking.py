"""How programs show a check: the same on one machine and on many."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tiered.checking.check import CheckReport
from tiered.findings import Finding, Severity
from tiered.format.keys import (
    is_pin_key,
    parse_hist_key,
    parse_page_key,
    parse_root_key,
    parse_segment_key,
    parse_snap_key,
    parse_staged_key,
)
from tiered.program.application import Application
from tiered.program.output import counted, human_bytes

MAX_REMEDIES = 20
"""Commands that are printed."""
_TOPIC = frozenset({"topic_entry", "two_names", "unregistered"})
"""Findings about an entry of the registry."""
_WRITTEN_SO = frozenset({"offset_index", "time_index", "txn_index_lost", "producer_snapshot_lost"})
"""Findings about an object with the right checksum: its writer was wrong, and no copy is better."""
_PARSERS = (parse_root_key, parse_segment_key, parse_staged_key, parse_page_key, parse_hist_key, parse_snap_key)


def remedies(findings: Iterable[Finding]) -> list[str]:
    """Return one command for each topic and each partition of which something in the bucket is damaged."""
    selected = dict[str, None]()
    for found in findings:
        if found.code in _TOPIC and found.topic:
            selected[found.topic] = None
        elif (
            found.severity is Severity.ERROR
            and found.code not in _WRITTEN_SO
            and found.partition >= 0
            and _is_key(found.where)
        ):
            selected[f"{found.topic}:{found.partition}"] = None
    lines = [f"{name}: `tiered repair {name} --dry-run` shows what can be repaired, and from what" for name in selected]
    return lines[:MAX_REMEDIES]


def _is_key(where: str) -> bool:
    return is_pin_key(where) or any(parse(where) is not None for parse in _PARSERS)


def show_finding(app: Application, finding: Finding, *, everything: bool = False) -> None:
    """Print a finding; what is only said for information, with ``everything`` or ``-v``."""
    if app.out.json_mode:
        app.out.message("finding", **finding.as_json())
    elif finding.severity is not Severity.INFO or everything or app.out.verbosity:
        app.out.line(str(finding))


def conclude_check(app: Application, report: CheckReport) -> int:
    """Print the summary of a check. Return its exit code."""
    fields = {
        field.name: getattr(report, field.name)
        for field in dataclasses.fields(report)
        if field.name not in ("findings", "unlisted")
    }
    advice = remedies(report.findings)
    app.out.summary(report.exit_code, complete=True, **fields, remedies=advice)
    if not app.out.json_mode:
        app.out.line(
            f"{counted(report.partitions, 'partition')}"
            f"; local {counted(report.local_segments, 'segment')}, {human_bytes(report.local_bytes)}"
            f"; remote {counted(report.remote_segments, 'segment')}, {human_bytes(report.remote_bytes)}"
        )
        for kind, count in sorted(report.archived.items()):
            app.out.line(f"archived: {counted(count, 'segment')} of storage class {kind}, which no reader gets")
        if report.unchecked:
            number, have = counted(report.unchecked, "object"), "has" if report.unchecked == 1 else "have"
            app.out.line(f"{number} {have} no checksum that the store tells: --read-data judges the bytes")
        for line in advice:
            app.out.line(f"next: {line}")
        app.out.line(
            "OK"
            if not report.exit_code
            else f"{counted(report.errors, 'error')}, {counted(report.warnings, 'warning')}: read them above"
        )
    return report.exit_code
