"""What retention and cleaning decide by segments: is it what the pure rule says? Then the model is told."""

from __future__ import annotations

from collections.abc import Callable

from tests.property.history.checks import same
from tests.property.history.geometry import Segment, bases_on_disk, expired_bases, segments_of, written_ms
from tests.property.history.world import Subject, World
from tests.support.model_cleaning import Cleaned, clean
from tiered.local.partition.write_log import WriteLog
from tiered.plan.batch_filter import CleaningReport
from tiered.plan.cleaning import CleaningCandidate


def take_start(subject: Subject, writer: WriteLog) -> None:
    """Segments left the disk."""
    subject.first_base = writer.segments.first_base
    subject.model.forget_below(writer.segments.first_base)
    subject.model.delete_before(writer.segments.local_start)
    if subject.uploaded is None:
        subject.model.trim_epochs()
    subject.starts.add(subject.log_start)


def judge_retention(
    world: World, subject: Subject, writer: WriteLog, real: Callable[[int], list[int]], now_ms: int
) -> list[int]:
    """One pass of retention."""
    expected, rolls = expired_bases(segments_of(writer), subject, now_ms)
    found = real(now_ms)
    world.say(f"  retention {subject.name}: {found}{' and a roll' if rolls else ''}")
    same(found, expected, f"{subject.name} retention")
    if rolls:
        same(writer.segments.active.base_offset, subject.model.end, f"{subject.name} rolled by retention")
    if found:
        take_start(subject, writer)
    return found


def judge_round(
    world: World,
    subject: Subject,
    writer: WriteLog,
    real: Callable[[], CleaningReport],
    candidate: CleaningCandidate,
    now_ms: int,
) -> CleaningReport:
    """One round of compaction."""
    model = subject.model
    before = segments_of(writer)
    dirty = world.home(subject).cleaner.checkpoint.offset(subject.tp)
    reset = dirty in subject.starts  # what is noted where the last note lay outside of the log
    assert reset or dirty == subject.dirty, f"{subject.name} cleaned to {subject.dirty}, but {dirty} is noted"
    if dirty is None or not model.start <= dirty <= model.end:
        dirty = model.start
    bound = first_uncleanable(before, subject, dirty, now_ms)
    same((candidate.first_dirty, candidate.first_uncleanable), (dirty, bound), f"{subject.name} what is to be cleaned")
    report = real()
    last = report.groups[-1][-1]
    rewritten = next(s.end for s in before if s.base == last)
    world.say(f"  cleaned {subject.name}: {dirty} to {report.end_offset} of {bound}, rewritten to {rewritten}")
    assert dirty < report.end_offset <= bound, f"{subject.name} cleaned {dirty} to {report.end_offset}"
    assert report.end_offset <= rewritten, f"{subject.name} cleaned to {report.end_offset}, rewritten to {rewritten}"
    clean(model, Cleaned(dirty, report.end_offset, rewritten, bound, now_ms, bases_on_disk(world, writer)))
    subject.dirty = min(report.end_offset, model.end)
    return report


def first_uncleanable(segments: list[Segment], subject: Subject, dirty: int, now_ms: int) -> int:
    """The base of the segment from which on nothing is cleaned: undecided, active or too young."""
    *sealed, active = segments
    bound = min(subject.model.stable_offset(), active.base)
    lag = subject.config.min_compaction_lag_ms
    for segment in sealed:
        if lag > 0 and segment.end > dirty and written_ms(segment, subject.config) > now_ms - lag:
            bound = min(bound, segment.base)
    return max([s.base for s in segments if s.base <= bound], default=active.base)
