"""``check --read-data`` of a bucket, spread over many machines: the registry on one, parts of partitions on all.

::

    registry ── findings ───────────────────────────────┐
       └─ entries ── roots, rows ── Part, Part, ...     ├── one report, as of a check on one machine
                                     └── findings each ─┘

Each segment is in exactly one part, judged by the same code as in ``check``. The state of producers before a part is
rebuilt from a few of the segments before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tiered.check.check import CheckOptions, CheckReport, CheckRun
from tiered.check.findings import Finding, Passed, Severity
from tiered.check.kept import check_kept
from tiered.check.local import LocalFacts
from tiered.check.remote import RemoteCheck
from tiered.check.segment_check import Reading, RemoteFacts
from tiered.config import MAX_LONG
from tiered.errors import CorruptionError
from tiered.format.root import STATE_OPEN
from tiered.model import TopicPartition
from tiered.plan.jobs import SPAN_BYTES, SpanCutter
from tiered.remote.root_view import RootView
from tiered.remote.topics import TopicEntry
from tiered.store.base import Steps

EVERYTHING = Reading(data=True)
"""Reading of every byte, under a pin."""


@dataclass(frozen=True, slots=True)
class CheckPart:
    """Segments of one partition whose base is in ``start`` to ``end`` (exclusive); one part has the root, too.

    ``state``: of the topic, by the registry. ``topic_id`` as 32 hex digits.
    """

    topic: str
    topic_id: str
    partition: int
    start: int = 0
    end: int = MAX_LONG
    segments: int = 0
    size_bytes: int = 0
    with_root: bool = True
    state: str = STATE_OPEN

    @property
    def entry(self) -> TopicEntry:
        """Return the fields of the registry's entry that a check of the partition needs."""
        return TopicEntry(self.topic, UUID(self.topic_id), self.partition + 1, state=self.state)


def cut_steps(
    url: str, topics: tuple[str, ...] = (), *, least_bytes: int = SPAN_BYTES
) -> Steps[tuple[CheckReport, list[CheckPart]]]:
    """Return the report on the registry, and the parts to check. Emit the findings; list the bucket.

    Raises UnknownTopicError for a named topic that does not exist.
    """
    run = CheckRun(CheckOptions(topics=topics, read_data=True))
    parts: list[CheckPart] = []
    for entry in (yield from run.registry(url, LocalFacts())):
        for number in range(entry.partitions):
            whole = CheckPart(entry.name, entry.topic_id.hex, number, state=entry.state)
            parts += yield from _cut(whole, least_bytes)
    return run.report(LocalFacts(), RemoteFacts()), parts


def _cut(whole: CheckPart, least_bytes: int) -> Steps[list[CheckPart]]:
    """Cut a partition. The last part is open: later appends, and an unreadable page, belong to it."""
    pinned = yield from _check(whole, RemoteFacts(), _silent).catalog(told=False)
    cutter = SpanCutter(least_bytes)
    at = 0
    try:
        while pinned is not None and len(rows := (yield from pinned.piece(at))):
            cutter.add(rows)
            at = rows.end_offset
    except CorruptionError:
        pass  # the check of the rows reports it
    spans = cutter.finish()
    parts = [
        dataclasses.replace(
            whole,
            start=span.start if number else 0,
            end=span.end if number + 1 < len(spans) else MAX_LONG,
            segments=span.segments,
            size_bytes=span.size_bytes,
            with_root=not number,
        )
        for number, span in enumerate(spans)
    ]
    return parts or [whole]


def part_steps(part: CheckPart, reading: Reading = EVERYTHING, *, orphans: bool = False) -> Steps[CheckReport]:
    """Check the segments of a part on the newest root, the bytes of those that ``reading`` chooses. Emit what is found.

    The part that has the root checks what its partition keeps beside it, too; with ``orphans`` it lists them.
    """
    run, facts = CheckRun(CheckOptions(read_data=True)), RemoteFacts()
    check = _check(part, facts, run.emit_all)
    yield from check.check_part(reading, part.start, part.end, with_root=part.with_root)
    if part.with_root:
        tp = TopicPartition(part.topic, part.partition)
        view = RootView(part.entry.topic_id, part.partition, part.topic)
        yield from run.emit_all((yield from check_kept(tp, view, read_data=True)))
        if orphans:
            yield from check.orphans()
    return run.report(LocalFacts(), facts)


def joined(registry: CheckReport, parts: Iterable[CheckReport]) -> CheckReport:
    """Return one report of the registry's, which knows the partitions, and of the parts'."""
    run, facts = CheckRun(CheckOptions(read_data=True)), RemoteFacts()
    for part in (registry, *parts):
        run.add(part)
        facts.segments += part.remote_segments
        facts.size_bytes += part.remote_bytes
        facts.unchecked += part.unchecked
        facts.data_bytes_read += part.data_bytes_read
        facts.archived.update(part.archived)
    return dataclasses.replace(run.report(LocalFacts(), facts), partitions=registry.partitions)


def report_as_json(report: CheckReport) -> dict[str, Any]:
    """Return all fields; findings in the words of ``--json``."""
    plain = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    return {**plain, "findings": [found.as_json() for found in report.findings]}


def report_from_json(fields: Mapping[str, Any]) -> CheckReport:
    """Return the report from the fields of :func:`report_as_json`."""
    return CheckReport(**{**fields, "findings": tuple(_finding(each) for each in fields["findings"])})


def _finding(fields: Mapping[str, Any]) -> Finding:
    absent: dict[str, Any] = {"topic": "", "partition": -1, "position": -1, "offset": -1}
    known = {name: absent[name] if value is None else value for name, value in fields.items()}
    return Finding(**known | {"severity": Severity(fields["severity"])})


def _check(part: CheckPart, facts: RemoteFacts, tell: Any) -> RemoteCheck:
    return RemoteCheck(TopicPartition(part.topic, part.partition), part.entry, facts, None, tell)


def _silent(_seen: Iterable[Finding | Passed]) -> Steps[None]:
    yield from ()
