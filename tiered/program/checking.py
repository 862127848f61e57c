"""How programs show a check: the same on one machine and on many."""

from __future__ import annotations

import dataclasses

from tiered.care.check import CheckReport
from tiered.care.remedies import remedies
from tiered.findings import Finding, Severity
from tiered.program.application import Application
from tiered.program.output import counted, human_bytes


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
