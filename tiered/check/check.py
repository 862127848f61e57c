"""Check of both tiers against their invariants. Takes no lock, and may run beside a writer and a collector.

::

    log directory ── every batch, index, checkpoint ──┐
                                                      ├── findings ── report
    bucket ── root, invariants, objects, bundles ─────┘
              (read_data: every byte)   where both hold a segment: the same bytes

Nothing is changed. ``read_data`` also decodes every record of both tiers: a right CRC only proves that the bytes are
those written. The invariants of a root are those that every commit checks (``plan.invariants``).

``read_data`` of a bucket can be spread over many machines: the registry on one, parts of partitions on all. Each
segment is in exactly one :class:`CheckPart`, judged by the same code. The state of producers before a part is rebuilt
from a few of the segments before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from tiered.check.findings import NEWER_RELEASE, Finding, Findings, Passed, Severity
from tiered.check.local import LocalCheck, LocalFacts
from tiered.check.registry import survey, unregistered
from tiered.check.remote import RemoteCheck, check_decisions, size_steps
from tiered.check.segment_check import Reading, RemoteFacts
from tiered.config import MAX_LONG
from tiered.display import html_table
from tiered.errors import (
    ConfigError,
    CorruptionError,
    LocalIOError,
    LocalPermissionError,
    NotFoundError,
    RemotePermissionError,
    TieredError,
    UnknownTopicError,
)
from tiered.format.keys import root_key, topic_key
from tiered.format.root import STATE_OPEN
from tiered.local.disk.files import Files
from tiered.local.disk.topics import TopicInfo, expected_topics
from tiered.model import TopicPartition
from tiered.plan.jobs import SPAN_BYTES, SpanCutter
from tiered.remote.topics import TopicEntry, another_bucket, list_topic_names, load_topic, no_topics
from tiered.store.base import Emit, ListVersions, Steps, Versions
from tiered.store.steps import blocking

MAX_FINDINGS = 10_000
"""Limit of the findings in a report; later ones are counted only."""

EXIT_WARNINGS = 3
UNVERSIONED = "null"
"""Version id that S3 gives an object which was put while versioning was off."""
VERSION_DAYS = 30
"""Days for which the bucket of ``terraform/modules/bucket`` keeps old versions of segments."""
EVERYTHING = Reading(data=True)
"""Reading of every byte."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Scope of a check. ``topics`` empty: all.

    ``read_data``: read every byte of the bucket, and decode every record of both tiers. ``subset`` (n, m): read only
    the n-th of m parts of the bucket, which together are all of it.
    """

    topics: tuple[str, ...] = ()
    read_data: bool = False
    subset: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of a check. ``unlisted``: number of findings after the first :data:`MAX_FINDINGS`, which are not listed.

    ``unchecked``: number of objects without a checksum in the store; only ``read_data`` checks their bytes. ``newer``:
    number of errors about objects of a newer release. ``denied``: number of errors about missing rights of this user.
    ``archived``: number of segments, by storage class, that must be restored from an archive before they can be read.
    """

    findings: tuple[Finding, ...]
    unlisted: int
    partitions: int
    local_segments: int
    local_bytes: int
    remote_segments: int
    remote_bytes: int
    unchecked: int
    data_bytes_read: int
    errors: int
    warnings: int
    newer: int = 0
    denied: int = 0
    archived: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        verdict = f"{self.errors} errors, {self.warnings} warnings" if self.exit_code else "OK"
        return f"<CheckReport {verdict}: {self.partitions} partitions>"

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.findings, repr(self))))

    def _repr_html_(self) -> str:
        rows = [(each.severity.value, each.where, each.message) for each in self.findings]
        return html_table(repr(self)[1:-1], ("severity", "place", "finding"), rows)

    @property
    def exit_code(self) -> int:
        """Return the exit code. 13: damaged or missing data. 12: ``denied`` errors. 2: all errors are ``newer``.

        3: there are only warnings. 0: no finding, or only informative ones.
        """
        if self.errors > self.newer + self.denied:
            return CorruptionError.exit_code
        if self.denied:
            return LocalPermissionError.exit_code
        if self.newer:
            return ConfigError.exit_code
        return EXIT_WARNINGS if self.warnings else 0


def check_steps(log_dir: Path | None, url: str | None, options: CheckOptions, files: Files) -> Steps[CheckReport]:
    """Check a log directory, a bucket or both. Emit each finding at once, and the progress. Return the report.

    Raises ConfigError without either or for a wrong ``subset``, and UnknownTopicError for a named topic in neither.
    Raises NotFoundError for a missing directory, a bucket without topics, or another bucket than that of the directory.
    Raises the errors of an unreadable store.
    """
    if log_dir is None and url is None:
        raise ConfigError(
            "there is nothing to check: neither a log directory nor a store was named",
            hint="pass log_dir, remote or both",
        )
    if options.subset is not None and not 1 <= options.subset[0] <= options.subset[1]:
        raise ConfigError(
            f"subset={options.subset} names no part of the segments", hint="(7, 20) checks the seventh of twenty parts"
        )
    run = CheckRun(options)
    local = LocalFacts()
    if log_dir is not None:
        local = yield from run.local(log_dir, files)
    remote = RemoteFacts()
    if url is not None:
        yield from run.remote(url, local, remote, Reading(options.read_data, options.subset))
    return run.report(local, remote)


class CheckRun:
    """Running check, with its findings and counts so far."""

    def __init__(self, options: CheckOptions) -> None:
        self.options = options
        self.log_dir: Path | None = None
        self.findings: list[Finding] = []
        self.unlisted = 0
        self.counts = dict.fromkeys(Severity, 0)
        self.newer = self.denied = 0
        self.partitions: set[TopicPartition] = set()
        self.unreadable: set[str] = set()

    def local(self, directory: Path, files: Files) -> Steps[LocalFacts]:
        """Check the log directory, and return facts for the comparison with the bucket.

        Raises NotFoundError if it does not exist.
        """
        self.log_dir = directory
        if not (yield from blocking(partial(files.is_directory, directory))):
            raise NotFoundError(f"the log directory {directory} does not exist", hint="correct the path")
        known = yield from blocking(partial(_topics, directory, files))

        def may_have_holes(topic: str) -> bool:
            return topic not in known or known[topic].config.compacted or known[topic].adopted

        settings = {name: topic.config for name, topic in known.items()}
        check = LocalCheck(directory, files, may_have_holes, self.options.topics, self.options.read_data, settings)
        look = check.run()
        while (seen := (yield from blocking(partial(next, look, None)))) is not None:
            yield from self.emit_all(seen)
        self.partitions.update(check.facts.partitions)
        return check.facts

    def remote(self, url: str, local: LocalFacts, facts: RemoteFacts, reading: Reading) -> Steps[None]:
        """Check the registry, and each partition of the chosen topics. ``facts`` collects totals.

        ``local``: facts of the log directory, for the comparison. ``reading``: segments of which every byte is read.
        """
        entries = yield from self.registry(url, local)
        if reading.data:
            every = [(entry.topic_id, partition) for entry in entries for partition in range(entry.partitions)]
            parts = 1 if reading.subset is None else reading.subset[1]
            yield Emit(Passed(0, "", local.size_bytes + (yield from size_steps(every, parts))))
        for entry in entries:
            for partition in range(entry.partitions):
                tp = TopicPartition(entry.name, partition)
                check = RemoteCheck(tp, entry, facts, local.partitions.get(tp), self.emit_all)
                yield from check.run(reading)

    def registry(self, url: str, local: LocalFacts) -> Steps[list[TopicEntry]]:
        """Return the readable registry entries of the chosen topics.

        Report unreadable entries, and partitions that no entry names. A check of all topics reads sink decisions, too.
        ``local``: facts of the log directory. Raises NotFoundError for a bucket without topics, and LogDestroyedError
        for another bucket than the one that the log directory was uploaded to.
        """
        notes: list[str] = []
        listed = yield from survey(notes, (RemotePermissionError, CorruptionError))  # a store of files lists no cut one
        entries: dict[str, TopicEntry] = {}
        for topic in self.options.topics or (yield from list_topic_names()):
            entry = yield from self._entry(topic)
            if entry is not None:
                entries[topic] = entry
                self.partitions.update(TopicPartition(entry.name, number) for number in range(entry.partitions))
        yield from self.emit_all(Finding(Severity.WARNING, "not_listed", note, url) for note in notes)
        if not notes:
            self._refuse_other_bucket(url, listed, entries, local)
        found, unnamed = yield from unregistered(listed, entries, self.unreadable, local, self.options.topics)
        yield from self.emit_all(found)
        self.partitions.update(unnamed)
        if not self.options.topics:
            yield from self.emit_all((yield from check_decisions()))
        if self.log_dir is None and not (self.options.topics or self.partitions or self.unreadable or self.findings):
            raise no_topics(url)
        return list(entries.values())

    def _refuse_other_bucket(
        self, url: str, listed: Collection[tuple[UUID, int]], entries: Mapping[str, TopicEntry], local: LocalFacts
    ) -> None:
        """Raise LogDestroyedError if the log directory was uploaded, and the bucket has no object of its topics.

        ``listed``: (topic id, partition) of all objects.
        """
        ids = {topic_id for topic_id, _ in listed} | {entry.topic_id for entry in entries.values()}
        uploaded = {tp: facts for tp, facts in local.partitions.items() if facts.known.by_disk}
        here = {facts.topic_id for facts in uploaded.values()} - {None}
        if here and ids.isdisjoint(here):
            raise another_bucket(min(uploaded).topic, self.log_dir, url)

    def add(self, part: CheckReport) -> None:
        """Add the findings and their counts from the report on a part. Totals of segments and bytes are not added."""
        room = MAX_FINDINGS - len(self.findings)
        self.findings += part.findings[:room]
        self.unlisted += part.unlisted + len(part.findings[room:])
        self.counts[Severity.ERROR] += part.errors
        self.counts[Severity.WARNING] += part.warnings
        self.newer += part.newer
        self.denied += part.denied

    def report(self, local: LocalFacts, remote: RemoteFacts) -> CheckReport:
        """Return the report with the totals of both tiers. Raises UnknownTopicError if a named topic is in no tier."""
        for topic in self.options.topics:
            if topic not in {tp.topic for tp in self.partitions} | self.unreadable:
                raise UnknownTopicError(f"there is no topic {topic!r} to check", hint="see `tiered topic list`")
        return CheckReport(
            findings=tuple(self.findings),
            unlisted=self.unlisted,
            partitions=len(self.partitions),
            local_segments=local.segments,
            local_bytes=local.size_bytes,
            remote_segments=remote.segments,
            remote_bytes=remote.size_bytes,
            unchecked=remote.unchecked,
            data_bytes_read=remote.data_bytes_read,
            errors=self.counts[Severity.ERROR],
            warnings=self.counts[Severity.WARNING],
            newer=self.newer,
            denied=self.denied,
            archived=dict(remote.archived),
        )

    def _entry(self, topic: str) -> Steps[TopicEntry | None]:
        found = Findings(topic_key(topic))
        try:
            entry = yield from load_topic(topic)
            if entry is not None:
                try:
                    _ = entry.settings
                except ConfigError as unknown:  # the topic is still readable, and is checked
                    what = unknown.message.removeprefix(f"{found.where}: ")
                    found.error("topic_setting", f"{what}; {unknown.hint}")
                yield from self.emit_all(found.about(topic, -1))
            return entry
        except CorruptionError as damage:
            found.error("topic_entry", damage.message, position=damage.position)
        except ConfigError as newer:
            found.error(NEWER_RELEASE, newer.message)
        self.unreadable.add(topic)
        yield from self.emit_all(found.about(topic, -1))
        return None

    def emit_all(self, seen: Iterable[Finding | Passed]) -> Steps[None]:
        for one in seen:
            yield Emit(one)
            if isinstance(one, Finding):
                self.count(one)

    def count(self, found: Finding) -> None:
        """Count a finding, and list it unless :data:`MAX_FINDINGS` are listed."""
        self.counts[found.severity] += 1
        self.newer += found.code == NEWER_RELEASE
        self.denied += found.denied
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(found)
        else:
            self.unlisted += 1


def _topics(directory: Path, files: Files) -> Mapping[str, TopicInfo]:
    """Return the topics of a log directory; empty where they cannot be read."""
    try:
        return expected_topics(directory, files)
    except (CorruptionError, LocalIOError):
        return {}


# -- parts, for many machines ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckPart:
    """Part of a distributed check: segments of one partition with bases from ``start`` to ``end`` (exclusive).

    ``segments``, ``size_bytes``: number and total size of these segments. ``with_root``: True for the one part that
    also checks the root. ``state``: of the topic, from the registry. ``topic_id``: 32 hex digits.
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
        """Return a registry entry with the fields that the check of this part needs."""
        return TopicEntry(self.topic, UUID(self.topic_id), self.partition + 1, state=self.state)


def cut_steps(
    url: str, topics: tuple[str, ...] = (), *, least_bytes: int = SPAN_BYTES
) -> Steps[tuple[CheckReport, list[CheckPart]]]:
    """Check the registry, and cut all partitions into parts. Return the report on the registry, and the parts.

    The bucket is listed, and findings are emitted. ``least_bytes``: a part ends at the latest with the segment that
    reaches this size. Raises UnknownTopicError for a named topic that does not exist, NotFoundError for a bucket
    without topics.
    """
    run = CheckRun(CheckOptions(topics=topics, read_data=True))
    parts: list[CheckPart] = []
    for entry in (yield from run.registry(url, LocalFacts())):
        for number in range(entry.partitions):
            whole = CheckPart(entry.name, entry.topic_id.hex, number, state=entry.state)
            parts += yield from _cut(whole, least_bytes)
    return run.report(LocalFacts(), RemoteFacts()), parts


def _cut(whole: CheckPart, least_bytes: int) -> Steps[list[CheckPart]]:
    """Return the parts of the partition ``whole``, each of about ``least_bytes``, or less for very many segments.

    The last part has no end: later appends and unreadable pages belong to it.
    """
    pinned = yield from _check(whole, RemoteFacts(), _silent).catalog(report=False)
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


def part_steps(part: CheckPart, reading: Reading = EVERYTHING) -> Steps[CheckReport]:
    """Check the segments of a part by the newest root. Return the report, and emit its findings.

    ``reading``: the segments of which every byte is read. The part with the root also checks snapshots, pins and
    copies of its partition.
    """
    run, facts = CheckRun(CheckOptions(read_data=True)), RemoteFacts()
    check = _check(part, facts, run.emit_all)
    yield from check.run(reading, part.start, part.end, with_root=part.with_root)
    return run.report(LocalFacts(), facts)


def joined(registry: CheckReport, parts: Iterable[CheckReport]) -> CheckReport:
    """Join the reports on the registry and on all parts. The number of partitions is that of ``registry``."""
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
    """Return all fields of a report as JSON values."""
    plain = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    return {**plain, "findings": [found.as_json() for found in report.findings]}


def report_from_json(fields: Mapping[str, Any]) -> CheckReport:
    """Return the report from the result of :func:`report_as_json`."""
    return CheckReport(**{**fields, "findings": tuple(_finding(each) for each in fields["findings"])})


def _finding(fields: Mapping[str, Any]) -> Finding:
    absent: dict[str, Any] = {"topic": "", "partition": -1, "position": -1, "offset": -1}
    known = {name: absent[name] if value is None else value for name, value in fields.items()}
    return Finding(**known | {"severity": Severity(fields["severity"])})


def _check(part: CheckPart, facts: RemoteFacts, reporter: Any) -> RemoteCheck:
    return RemoteCheck(TopicPartition(part.topic, part.partition), part.entry, facts, None, reporter)


def _silent(_seen: Iterable[Finding | Passed]) -> Steps[None]:
    yield from ()


# -- versions of the bucket --------------------------------------------------------------------------------------------


def keeps_versions() -> Steps[bool | None]:
    """Return True if the bucket keeps old versions of objects, False if not. One root is examined.

    None: unknown, because the store has no versions, there is no topic, or a right is missing.
    """
    try:
        names = yield from list_topic_names()
        entry = (yield from load_topic(names[0])) if names else None
        if entry is None:
            return None
        page: Versions = yield ListVersions(root_key(entry.topic_id, 0))
    except TieredError:
        return None
    return page.entries[0].version != UNVERSIONED if page.supported and page.entries else None


def versions_warning(parts: int) -> Steps[str]:
    """Return a warning if damage might not be repaired from older versions of objects, otherwise ``""``.

    ``parts``: number of parts of the bucket, of which one is read each day.
    """
    kept = yield from keeps_versions()
    if kept is False:
        return "the bucket keeps no versions: what is damaged or deleted may be lost; turn bucket versioning on"
    if kept and parts > VERSION_DAYS:
        return (
            f"a scrub in {parts} parts, one a day, takes longer than {VERSION_DAYS} days, for which "
            "terraform/modules/bucket keeps old versions: damage may outlive them; read a larger part each day"
        )
    return ""
