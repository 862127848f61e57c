"""Options and output of a check, shared by ``tiered check`` and the check on Spark."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from tiered.check.check import CheckReport
from tiered.check.findings import NEWER_RELEASE, Finding, Severity
from tiered.check.local import UNREADABLE
from tiered.config import DAY_MS
from tiered.errors import ConfigError
from tiered.format.coordinator_records import is_state_log
from tiered.format.keys import (
    is_pin_key,
    parse_hist_key,
    parse_page_key,
    parse_root_key,
    parse_segment_key,
    parse_snap_key,
    parse_staged_key,
)
from tiered.metrics import Metric, metric
from tiered.program.application import Application
from tiered.program.output import counted, human_bytes

F = TypeVar("F", bound=Callable[..., Any])

MAX_PARTS = 10_000
"""Most parts of ``--read-data-subset``."""
MAX_REMEDIES = 20
"""Most repair commands that are printed."""
_TOPIC = frozenset({"topic_entry", "two_names", "unregistered"})
"""Codes of findings about an entry of the registry."""
_WRITTEN_SO = frozenset({"offset_index", "time_index", "txn_index_lost", "producer_snapshot_lost"})
"""Codes of findings about an object with the right checksum: its writer was wrong, and no copy is better."""
_NOT_DAMAGED = frozenset({UNREADABLE, NEWER_RELEASE})
"""Codes of findings about files on the disk that may be whole."""
_PARSERS = (parse_root_key, parse_segment_key, parse_staged_key, parse_page_key, parse_hist_key, parse_snap_key)


def reading_options(read_data_help: str) -> Callable[[F], F]:
    """Return a decorator that adds ``--read-data`` and ``--read-data-subset``.

    ``read_data_help``: help of ``--read-data``.
    """
    options = (
        click.option("--read-data", is_flag=True, help=read_data_help),
        click.option(
            "--read-data-subset",
            metavar="PART",
            help="read a part of the segments: 7/20, or 5%: another one each day, all of them in 20 days",
        ),
    )

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def subset_of(app: Application, text: str | None, *, read_data: bool) -> tuple[int, int] | None:
    """Parse ``--read-data-subset`` to (n, m), the n-th of m parts, and print it. None gives None.

    ``7/20`` gives (7, 20). ``5%`` gives one of 20 parts, another one each day. ``read_data``: ``--read-data`` is given,
    too. Raises ConfigError for both options and for other text.
    """
    if text is None:
        return None
    if read_data:
        raise ConfigError("--read-data and --read-data-subset exclude each other", hint="give one of them")
    number, slash, parts = text.strip().partition("/")
    if slash and number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts) <= MAX_PARTS:
        part, count = int(number), int(parts)
    else:
        count = math.ceil(100 / _share(text))
        part = app.clock.now_ms() // DAY_MS % count + 1
    app.out.say(f"reading part {part} of {count} of the segments: --read-data-subset {part}/{count}")
    return part, count


def _share(text: str) -> float:
    try:
        share = float(text.strip().removesuffix("%")) if text.strip().endswith("%") else 0.0
    except ValueError:
        share = 0.0
    if not 100 / MAX_PARTS <= share <= 100:
        raise ConfigError(
            f"--read-data-subset {text} names no part of the segments",
            hint="for example 7/20, or 5%; --read-data reads everything",
        )
    return share


def remedies(app: Application, findings: Iterable[Finding]) -> list[str]:
    """Return a line with a ``tiered repair`` command for each topic or partition with damage in the bucket or the disk.

    The command for damage on the disk names the log directory and the bucket. Return at most :data:`MAX_REMEDIES`
    lines.
    """
    selected = dict[str, str]()
    for found in findings:
        name = f"{found.topic}:{found.partition}"
        if found.code in _TOPIC and found.topic:
            selected.setdefault(found.topic, "")
        elif found.severity is not Severity.ERROR or found.partition < 0:
            continue
        elif _is_key(found.where):
            if found.code not in _WRITTEN_SO:
                selected.setdefault(name, "")
        elif app.log_dir is not None and app.log_dir in Path(found.where).parents and found.code not in _NOT_DAMAGED:
            selected[name] = f" --log-dir {shlex.quote(str(app.log_dir))}"
            if app.remote is not None and not is_state_log(found.topic):
                selected[name] += f" --remote {shlex.quote(app.remote)}"
    lines = [
        f"{name}: `tiered repair {name}{tiers} --dry-run` shows what can be repaired, and from what"
        for name, tiers in selected.items()
    ]
    return lines[:MAX_REMEDIES]


def _is_key(where: str) -> bool:
    return is_pin_key(where) or any(parse(where) is not None for parse in _PARSERS)


def show_finding(app: Application, finding: Finding) -> None:
    """Print a finding. One with severity ``info`` is printed only with ``-v`` or ``--json``."""
    if app.out.json_mode:
        app.out.message("finding", **finding.as_json())
    elif finding.severity is not Severity.INFO or app.out.verbosity:
        app.out.line(str(finding))


def check_metrics(report: CheckReport, now_ms: int) -> list[Metric]:
    """Return the metrics of a check that ended at ``now_ms``."""
    return [
        metric("check_last_end_timestamp_seconds", now_ms / 1000),
        metric("check_errors", report.errors),
        metric("check_warnings", report.warnings),
        metric("check_local_bytes", report.local_bytes),
        metric("check_remote_bytes", report.remote_bytes),
    ]


def conclude_check(app: Application, report: CheckReport) -> int:
    """Print the summary of a check. Return its exit code."""
    fields = {
        field.name: getattr(report, field.name)
        for field in dataclasses.fields(report)
        if field.name not in ("findings", "unlisted")
    }
    advice = remedies(app, report.findings)
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
            app.out.line(f"{number} {have} no checksum in the store: --read-data judges the bytes")
        for line in advice:
            app.out.line(f"next: {line}")
        app.out.line(
            "OK"
            if not report.exit_code
            else f"{counted(report.errors, 'error')}, {counted(report.warnings, 'warning')}: read them above"
        )
    return report.exit_code
