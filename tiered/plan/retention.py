"""Plan of the segments that may be deleted from the disk and from the bucket. Pure.

Only the oldest expire: the plan stops at the first segment that must stay. With a remote tier a segment leaves the disk
only below the committed end that was read back from the bucket. Without one ``retention.*`` decides, and the log start
moves.

The age of a segment counts from its largest record timestamp if that can be right, otherwise from the time of its last
append (:func:`age_from_ms`): a wrong timestamp pins nothing and expires nothing early. Retention in both tiers,
merging, compaction and ``restore`` use the same function.

For the bucket Kafka's comparisons of its remote tier apply. The decision is a new log start; ``Catalog.trim`` commits
it, and only then do objects become trash. A segment that is being uploaded is in no root yet: it cannot expire. A
topic whose policy does not say ``delete`` is only trimmed by its log start, in either tier.

Kafka's rule: docs/kafka-semantics.md#remote-retention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiered.config import DAY_MS, MAX_LONG, SAME_AS_TOPIC, UNLIMITED, TopicConfig
from tiered.model import Row
from tiered.times import format_time

LEAD_MS = TopicConfig().message_timestamp_after_max_ms
"""How far a timestamp may be ahead of its append if the topic's setting is not usable."""

MOST_LEAD_MS = 366 * DAY_MS
"""Limit above which ``message.timestamp.after.max.ms`` only switches the check of appends off."""


def lead_ms(config: TopicConfig) -> int:
    """Return the number of ms that a record timestamp may be ahead of its append time and still count as right.

    It is ``message.timestamp.after.max.ms``, or the default of that setting if the topic's value is above 366 days.
    """
    allowed = config.message_timestamp_after_max_ms
    return allowed if allowed <= MOST_LEAD_MS else LEAD_MS


def is_believed(max_timestamp: int, appended_ms: int, config: TopicConfig) -> bool:
    """Return True if a segment's largest record timestamp can be right: not negative, and not far after its append.

    "Far" is above ``message.timestamp.after.max.ms``, or above its default if the topic's value is above 366 days.
    ``appended_ms`` -1: the append time is unknown, and is not compared.
    """
    return 0 <= max_timestamp <= appended_ms + lead_ms(config) if appended_ms >= 0 else max_timestamp >= 0


def age_from_ms(max_timestamp: int, appended_ms: int, config: TopicConfig) -> int:
    """Return the time in ms from which the age of a segment counts; -1 if it is unknown.

    It is ``max_timestamp`` if that can be right, otherwise ``appended_ms``.
    """
    return max_timestamp if is_believed(max_timestamp, appended_ms, config) else appended_ms


def row_age_from_ms(row: Row, config: TopicConfig) -> int:
    """Return the time from which the age of a row's segment counts; -1 if unknown, or if the row has no object.

    It is the largest record timestamp if that can be right, otherwise the append time.
    """
    return age_from_ms(row.max_ts, row.appended_ms, config) if row.size else -1


def has_wrong_times(row: Row, config: TopicConfig) -> bool:
    """Return True if a row has records whose timestamps cannot be right. Its age then counts from its append time."""
    return row.records > 0 and not is_believed(row.max_ts, row.appended_ms, config)


def times_of(row: Row) -> tuple[int, int, int, int]:
    """Return (base, end, largest timestamp, append time) of a row: the arguments of :func:`wrong_times_text`."""
    return row.base, row.next, row.max_ts, row.appended_ms


def wrong_times_text(base: int, end: int, max_timestamp: int, appended_ms: int) -> str:
    """Return one sentence that says why the timestamps of a segment are not used."""
    largest = "it has none" if max_timestamp < 0 else f"the largest is {max_timestamp}"
    appended = "unknown" if appended_ms < 0 else format_time(appended_ms)
    what = f"timestamps of the segment with offsets {base} to {end} are not used"
    return f"{what}: {largest}, its append time is {appended}"


def dated(rows: Sequence[Row], *, before_ms: int, commit_ms: int, trusted: bool) -> tuple[Row, ...]:
    """Return ``rows`` with the append times that the catalog stores. They never fall from row to row.

    Args:
        rows: Uploaded segments in order, each with the writer's clock at its last append.
        before_ms: Append time of the row before ``rows``, -1 without one.
        commit_ms: Time of the commit, which is never far from the store's clock.
        trusted: The writer's clock agrees with the store's now. If not, the time of the commit counts.
    """
    found: list[Row] = []
    for row in rows:
        known = trusted and 0 <= row.appended_ms <= commit_ms
        before_ms = max(before_ms, row.appended_ms if known else commit_ms)
        found.append(row._replace(appended_ms=before_ms))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class LocalSegmentFacts:
    """Sealed segment on disk. ``max_timestamp`` -1: no timestamps. ``appended_ms``: time of its last append."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    appended_ms: int

    def is_older(self, than_ms: int, now_ms: int, config: TopicConfig) -> bool:
        """Return True if the segment's age is strictly above ``than_ms``. False if the age is unknown.

        ``than_ms`` -1: no limit, always False.
        """
        from_ms = age_from_ms(self.max_timestamp, self.appended_ms, config)
        return min(than_ms, from_ms) >= 0 and now_ms - from_ms > than_ms


@dataclass(frozen=True, slots=True)
class LocalRetention:
    """Plan of local retention. ``bases``: base offsets of the segments to delete, oldest first.

    ``delete_below``: first offset on the disk afterwards. ``roll_active``: the active segment has expired, too, and is
    rolled first. Its base is then the last of ``bases``; in a tiered log it is not, because it must be uploaded first.
    """

    delete_below: int
    bases: tuple[int, ...]
    roll_active: bool = False


def plan_local_retention(
    sealed: Sequence[LocalSegmentFacts],
    *,
    active_bytes: int,
    config: TopicConfig,
    now_ms: int,
    log_start_offset: int,
    committed_end: int | None,
    active: LocalSegmentFacts | None = None,
) -> LocalRetention:
    """Return the plan of the segments to delete at ``now_ms``: below the log start, above the size limit, or too old.

    ``sealed``: the sealed segments, ascending. ``committed_end``: only segments that end at or below it are deleted;
    None: there is no remote tier. ``active``: the active segment; None, or without bytes: it stays. ``active_bytes``:
    size of the active segment, which counts for the size limit even if ``active`` is None. Without a remote tier, size
    and age count only if ``cleanup.policy`` has ``delete``.

    Kafka's rule: docs/kafka-semantics.md#retention.
    """
    if committed_end is None:
        retention_ms = config.retention_ms if config.deletes else UNLIMITED
        retention_bytes = config.retention_bytes if config.deletes else UNLIMITED
    else:
        retention_ms = _local(config.local_retention_ms, config.retention_ms)
        retention_bytes = _local(config.local_retention_bytes, config.retention_bytes)
    excess = sum(segment.size_bytes for segment in sealed) + active_bytes - retention_bytes
    bases: list[int] = []
    for segment in sealed:
        goes = (
            segment.end_offset <= log_start_offset
            or (retention_bytes >= 0 and excess >= segment.size_bytes)
            or segment.is_older(retention_ms, now_ms, config)
        )
        if not goes or (committed_end is not None and segment.end_offset > committed_end):
            break
        excess -= segment.size_bytes
        bases.append(segment.base_offset)
    below = sealed[len(bases) - 1].end_offset if bases else (sealed[0].base_offset if sealed else log_start_offset)
    if active is None or active.size_bytes == 0:
        return LocalRetention(below, tuple(bases))
    if committed_end is not None:
        return LocalRetention(below, tuple(bases), active.is_older(retention_ms, now_ms, config))
    large = retention_bytes >= 0 and excess >= active.size_bytes
    if len(bases) == len(sealed) and (large or active.is_older(retention_ms, now_ms, config)):
        return LocalRetention(active.end_offset, (*bases, active.base_offset), True)
    return LocalRetention(below, tuple(bases))


def _local(local: int, whole: int) -> int:
    return whole if local == SAME_AS_TOPIC else local


@dataclass(frozen=True, slots=True)
class RemoteExpiry:
    """Plan of remote retention. ``start_offset``: new start of the log. ``segments``: number of rows that expire.

    ``size_bytes``: their bytes. ``reasons``: the rules by which they expire.
    """

    start_offset: int
    segments: int = 0
    size_bytes: int = 0
    reasons: tuple[str, ...] = ()


def plan_remote_expiry(
    rows: Iterable[Row],
    *,
    config: TopicConfig,
    now_ms: int,
    start_offset: int,
    size_bytes: int | None = None,
    next_offset: int = -1,
) -> RemoteExpiry:
    """Return the plan that expires the oldest of ``rows`` at ``now_ms``, up to the first row that stays.

    A row expires if it ends at or below ``start_offset``, at an age of ``retention.ms``, or if the log without it stays
    at or above ``retention.bytes``. Age and size count only if ``cleanup.policy`` has ``delete``. ``rows``: ascending.
    ``size_bytes``: size of these rows and all later ones, if ``rows`` are only the first. The row that ends at
    ``next_offset`` expires only by ``start_offset``, because its bundle has the producer state.
    """
    kept = list(rows)
    whole = sum(row.size for row in kept) if size_bytes is None else size_bytes
    retention_ms = config.retention_ms if config.deletes else UNLIMITED
    retention_bytes = config.retention_bytes if config.deletes else UNLIMITED
    excess = whole - retention_bytes
    expired = now_ms - retention_ms
    start, gone, size = start_offset, 0, 0
    reasons: list[str] = []
    for row in kept:
        if row.next <= start_offset:
            reason = "log start offset"
        # mutant newest-segment-is-kept
        elif row.next == next_offset:
            break
        # mutant retention-compares-time
        elif retention_ms >= 0 and _counts_from_ms(row, config) <= expired:
            reason = "retention.ms"
        elif retention_bytes >= 0 and excess > 0 and excess >= row.size:
            reason = "retention.bytes"
        else:
            break
        excess -= row.size
        start, gone, size = max(start, row.next), gone + 1, size + row.size
        if reason not in reasons:
            reasons.append(reason)
    return RemoteExpiry(start, gone, size, tuple(reasons))


def _counts_from_ms(row: Row, config: TopicConfig) -> int:
    """Return the time from which the row's age counts.

    A segment without any time never expires. A row without an object expires at once.
    """
    found = row_age_from_ms(row, config)
    return MAX_LONG if found < 0 and row.size else found
