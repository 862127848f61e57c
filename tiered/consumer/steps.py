"""Consumer as steps functions, for threads and for asyncio: partitions, positions and commits.

::

    assignment.poll ──> partitions ──> position: the committed one, else start= ──> compared with the lineage
    fetches ──> decoded records ──> returned: the position moves ──> commit: assignment.commit
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from tiered import arguments
from tiered.clock import Clock, SystemClock
from tiered.consumer.assignment import Assignment, Changes, Position
from tiered.display import names_without
from tiered.errors import (
    ClosedError,
    ConfigError,
    InvalidTimestampError,
    LogDestroyedError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    PartitionLostError,
    RemoteUnavailableError,
    TieredError,
    UnknownTopicError,
)
from tiered.model import TopicPartition
from tiered.plan.lineage import common_end, epoch_at
from tiered.read.fetch import LONGEST_WAIT_S, Emitter, Followers, PartitionFetch, monotonic_s
from tiered.read.stream import ISOLATION_LEVELS, ON_TRIMMED, ReadRange, ReadRequest, TierStream
from tiered.read.topic import records_of
from tiered.store.base import Blocking, Emit, Now, Steps, Wait
from tiered.store.base import Time as Clocks
from tiered.times import Time, parse_time

MAX_POLL_RECORDS = 500
"""Kafka's ``max.poll.records``."""
ON_TRUNCATED = ("raise", "rewind")

_logger = logging.getLogger("tiered.consumer")

Callback = Callable[[Collection[TopicPartition]], object]
StreamOpener = Callable[[TopicPartition], Steps[TierStream]]
"""Steps that open a refreshed stream of one partition."""
RECORDS = records_of(ReadRequest((), ReadRange()))
"""Emitter of records."""


class ConsumerKeywords(TypedDict, total=False):
    """Options of a consumer.

    ``start``: "earliest" (the default), "latest" or a time, for partitions without a committed position.
    ``isolation``: "read_uncommitted" or "read_committed", which stops at the last stable offset.
    ``on_trimmed``: if retention deleted the records at the position, "raise", or "jump" to the earliest offset.
    ``on_truncated``: if the log was truncated below the position, "raise", or "rewind" to where it differs.
    ``stop_at``: "end" ends after the records that exist at the first poll. None: wait for more.
    ``idle_timeout``: time without a record after which iterations end, in seconds or as text such as "5s". The time
    in which a member of a group waits for its partitions does not count.
    ``commit_every``: period of automatic commits of the records that earlier calls returned; in a bucket at least a
    second. None: only ``commit`` commits.
    ``on_assigned``, ``on_lost``: called with partitions inside ``poll``.
    """

    start: Time
    isolation: str
    on_trimmed: str
    on_truncated: str
    stop_at: str | None
    idle_timeout: float | str | None
    commit_every: float | str | None
    on_assigned: Callback
    on_lost: Callback


class Options:
    """Checked options of a consumer. ``start_ms``: ``start`` as a time in ms, None if it is "earliest" or "latest"."""

    def __init__(self, given: ConsumerKeywords, *, now_ms: int) -> None:
        """Check the keywords of a consumer. ``now_ms``: time from which a relative ``start`` counts.

        Raises ConfigError for an unknown keyword or a wrong value, InvalidTimestampError for a wrong ``start``.
        """
        unknown = given.keys() - ConsumerKeywords.__annotations__.keys()
        if unknown:
            hint = f"they are {', '.join(ConsumerKeywords.__annotations__)}"
            raise ConfigError(f"unknown consumer option {min(unknown)!r}", hint=hint)
        start, stop_at = given.get("start", "earliest"), given.get("stop_at")
        if stop_at not in (None, "end"):
            raise arguments.wrong("stop_at", stop_at, '"end", or None to follow')
        try:
            self.start_ms = None if start in ("earliest", "latest") else parse_time(start, now_ms=now_ms)
        except InvalidTimestampError as error:
            hint = f'"earliest", "latest" or a time: {error.hint}'
            raise InvalidTimestampError(f"start: {error.message}", hint=hint) from None
        self.start, self.stops = str(start), stop_at is not None
        self.isolation = arguments.one_of("isolation", given.get("isolation", "read_uncommitted"), ISOLATION_LEVELS)
        self.on_trimmed = arguments.one_of("on_trimmed", given.get("on_trimmed", "raise"), ON_TRIMMED)
        self.on_truncated = arguments.one_of("on_truncated", given.get("on_truncated", "raise"), ON_TRUNCATED)
        self.idle_s = arguments.duration_s("idle_timeout", given.get("idle_timeout"))
        self.commit_every_s = arguments.duration_s("commit_every", given.get("commit_every"))
        self.on_assigned: Callback = given.get("on_assigned", _ignore)
        self.on_lost: Callback = given.get("on_lost", _ignore)


def _ignore(_: Collection[TopicPartition]) -> None: ...


@dataclass(slots=True)
class Request:
    """Request of a poll: at most ``most`` items within ``timeout_s``. ``fill``: wait for ``most`` items.

    ``emit``: form of the items, such as records or Arrow batches.
    """

    most: int = MAX_POLL_RECORDS
    timeout_s: float = math.inf
    fill: bool = False
    emit: Emitter = RECORDS

    @classmethod
    def checked(cls, max_records: int, timeout: float | str | None, *, fill: bool = False) -> Request:
        """Return the request of a caller. Raises ConfigError for a wrong value."""
        most = arguments.whole("max_records", max_records, least=1)
        return cls(most, arguments.duration_s("timeout", timeout), fill)


class ConsumerFace:
    """Base of the synchronous and the asyncio consumer."""

    def __init__(self, core: ConsumerSteps, clock: Clock | None) -> None:
        self.core = core
        self._clock = clock or SystemClock()

    __dir__ = names_without("core")

    def __repr__(self) -> str:
        return f"<Consumer group={self.core.group!r} partitions={len(list(self.core.assigned()))}>"

    @property
    def skipped(self) -> int:
        """Return the number of offsets that were skipped by ``on_trimmed="jump"``."""
        return self.core.skipped

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no more records of these partitions, until :meth:`resume`. Their positions stay."""
        self.core.paused |= set(map(TopicPartition._make, partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these paused partitions again."""
        self.core.paused -= set(map(TopicPartition._make, partitions))


class ConsumerSteps:
    """State of one consumer, and its operations as steps functions. Not thread-safe, except :meth:`wake`.

    ``request``: request that :meth:`loop` answers. ``paused``: partitions of which no record is returned. ``closed``:
    no further call may begin. ``left``: the consumer has left the group.
    """

    def __init__(
        self, group: str, assignment: Assignment, opener: StreamOpener, followers: Followers, options: Options
    ) -> None:
        self.group = group
        self.assignment = assignment
        self.request = Request()
        self.skipped = 0
        self.closed = False
        self.left = False
        self._opener = opener
        self._followers = followers
        self._options = options
        self._stack = ExitStack()
        self._signal = self._stack.enter_context(followers.signal())
        self._fetches: dict[TopicPartition, PartitionFetch] = {}
        self._new: dict[TopicPartition, Position | None] = {}
        self.paused: set[TopicPartition] = set()
        self._stopped: set[TopicPartition] = set()
        self._waits = self._is_incomplete = False
        self._stops: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._emit = RECORDS
        self._last_s = -math.inf
        self._commit_s = -math.inf
        self._commit_every_s = max(options.commit_every_s, assignment.commit_interval_s)
        self._deferred: dict[TopicPartition, Position] = {}
        self._stored_s = -math.inf
        self._failure: TieredError | None = None

    # -- records -----------------------------------------------------------------------------------------------------

    def loop(self) -> Steps[None]:
        """Emit answers to :attr:`request`: fetches with items, ``[]`` after the timeout, None at the end.

        An error ends the loop. A new loop continues at the positions.
        """
        try:
            while True:
                yield Emit((yield from self._poll(self.request)))
        finally:
            for fetch in self._fetches.values():
                fetch.drop()

    def _poll(self, request: Request) -> Steps[list[PartitionFetch] | None]:
        """Return fetches with items, ``[]`` after the timeout. None: the consumer has reached its end."""
        now_s = yield from monotonic_s()
        deadline = now_s + request.timeout_s
        if self._last_s == -math.inf:  # the time of the caller is no silence
            self._last_s = now_s
        if self._commit_s == -math.inf:
            self._commit_s = now_s
        if request.emit is not self._emit:
            self._emit = request.emit
            for fetch in self._fetches.values():
                fetch.drop()
        while True:
            yield from self._commit_due(now_s)
            yield from self.apply_changes()
            if self._waits:  # a member that joins, or whose lease has expired: no record may come yet
                self._last_s = now_s
            if self._signal.is_set():
                self._signal.clear()  # before the ends are read: an append from here on ends the next wait
                for fetch in self._fetches.values():
                    fetch.wake()
            moved = yield from self._round(request, now_s)
            ready = [fetch for fetch in self._readable() if fetch.ready]
            now_s = yield from monotonic_s()
            ended = now_s - self._last_s >= self._options.idle_s or self._has_ended()
            enough = sum(fetch.ready for fetch in ready) >= request.most
            if ready and (enough or ended or not request.fill or now_s >= deadline):
                self._fetches[ready[0].tp] = self._fetches.pop(ready[0].tp)  # the others come first next time
                self._last_s = -math.inf
                return ready
            if ended and not moved:
                return None
            if now_s >= deadline and not moved:
                return []
            if not moved:
                yield Wait(self._signal, self._wait_s(now_s, deadline))
                now_s = yield from monotonic_s()

    def _commit_due(self, now_s: float) -> Steps[None]:
        """Commit the positions after returned records if ``commit_every`` has passed, and deferred positions if due."""
        if now_s - self._commit_s >= self._commit_every_s:
            yield from self.commit(self.handed_out())
            self._commit_s = now_s
        # mutant commits-are-coalesced
        elif self._deferred and now_s >= self._stored_s + self.assignment.commit_interval_s:
            try:
                yield from self.commit({})
            except TieredError as error:
                self._failure = error  # of the commit that deferred it, not of this poll

    def _round(self, request: Request, now_s: float) -> Steps[bool]:
        """Read from each partition once, until there are enough items. Return True if a partition made progress."""
        moved, count = False, 0
        for fetch in self._readable():
            fetch.fill(request.most)
            if fetch.due <= now_s and (not fetch.ready or (request.fill and fetch.ready < request.most)):
                moved |= yield from self._pull(fetch, now_s)
                fetch.fill(request.most)
            count += fetch.ready
            if count >= request.most:
                break
        return moved

    def _pull(self, fetch: PartitionFetch, now_s: float) -> Steps[bool]:
        try:
            found = yield from fetch.pull(now_s, self._emit, self._followers)
        except OffsetOutOfRangeError as error:
            yield from self._move_into_range(fetch, error)
            return True
        except LogDestroyedError:  # the assignment drops the partition
            fetch.due = now_s + self.assignment.poll_interval_s
            return False
        if fetch.gone:  # to another directory of this log, or its topic was made again
            committed = self._committed.get(fetch.tp, fetch.position)
            yield from self._drop(fetch)
            self._committed[fetch.tp] = committed
            self._new[fetch.tp] = Position(fetch.position, fetch.epoch)
        return found

    def hand_out(self, fetches: Sequence[PartitionFetch]) -> Any:
        """Return the next item of these fetches, and move the position to after it. None without an item."""
        for fetch in fetches:
            if fetch.ready and fetch.tp not in self.paused and fetch.tp not in self._stopped and not self._waits:
                return fetch.next_item()
        return None

    def _readable(self) -> list[PartitionFetch]:
        held_back = self._fetches.keys() if self._waits else self.paused | self._stopped
        return [fetch for tp, fetch in self._fetches.items() if tp not in held_back]

    def _has_ended(self) -> bool:
        if self._waits or self._is_incomplete or self._new or not self._options.stops:
            return False
        return all(fetch.ended for fetch in self._fetches.values())

    def _wait_s(self, now_s: float, deadline: float) -> float:
        idle_end_s = self._last_s + self._options.idle_s
        due_s = min((fetch.due for fetch in self._readable()), default=math.inf)
        commit_end_s = self._commit_s + self._commit_every_s if self.handed_out() else math.inf
        if self._deferred:
            commit_end_s = min(commit_end_s, self._stored_s + self.assignment.commit_interval_s)
        next_s = min(deadline, idle_end_s, due_s, commit_end_s, now_s + self.assignment.poll_interval_s)
        return min(max(next_s - now_s, 0.0), LONGEST_WAIT_S)

    # -- partitions --------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise ClosedError if the consumer, the log or the reader was closed."""
        if self.closed:
            raise ClosedError(f"the consumer of group {self.group!r} was closed", hint="make a new consumer")
        self._followers.check_open()

    def apply_changes(self) -> Steps[None]:
        """Open and close partitions as the assignment has changed. One that cannot be opened is retried later.

        Raises ClosedError after a close, and RemoteUnavailableError while no partition is open.
        """
        self.check_open()
        yield from self._poll_assignment()
        if not self._new:
            return
        unknown = [tp for tp, position in self._new.items() if position is None]
        known = (yield Blocking(partial(self.assignment.committed, unknown))) if unknown else {}
        begun = []
        for tp, given in tuple(self._new.items()):
            try:
                yield from self._start_partition(tp, known.get(tp) if given is None else given)
            except (RemoteUnavailableError, LogDestroyedError, PartitionLostError) as error:
                if not self._fetches and isinstance(error, RemoteUnavailableError):
                    raise
                _logger.warning("%s cannot be read yet: %s", tp, error)
                break
            del self._new[tp]
            begun.append(tp)
        if begun:
            self._options.on_assigned(begun)

    def _poll_assignment(self) -> Steps[None]:
        changes: Changes = self.assignment.poll(self.handed_out().keys())
        self._waits, self._is_incomplete = changes.wait, changes.incomplete
        self._new.update(changes.assigned)
        for tp in changes.lost:
            self._committed.pop(tp, None)
            if tp not in changes.assigned:
                self._new.pop(tp, None)
            if tp in self._fetches:
                yield from self._drop(self._fetches[tp])
        if changes.lost:
            self._options.on_lost(tuple(changes.lost))
        for tp in changes.stop:
            self._stopped.add(tp)

    def _drop(self, fetch: PartitionFetch) -> Steps[None]:
        tp = fetch.tp
        del self._fetches[tp]
        self._stopped.discard(tp)
        self._committed.pop(tp, None)
        fetch.drop()
        fetch.stream.unwatch(self._signal)
        yield from fetch.stream.release()

    def _start_partition(self, tp: TopicPartition, position: Position | None) -> Steps[None]:
        """Open a partition at ``position``; None: at the option ``start``."""
        stream = yield from self._opener(tp)
        fetch = yield from PartitionFetch.open(stream, self._signal, isolation=self._options.isolation)
        if position is None:
            fetch.seek((yield from fetch.stream.first_offset(self._options.start, self._options.start_ms)))
            if self._options.start != "earliest":  # resolved once: the next process must not skip what comes meanwhile
                yield from self.store({tp: Position(fetch.position)})
        else:
            fetch.seek(position.offset, position.leader_epoch)
            yield from self._check_lineage(fetch)
        self._committed.setdefault(tp, fetch.position if position is None else position.offset)
        if self._options.stops and tp not in self._stops:
            self._stops[tp] = yield from self._end_of(fetch)
        fetch.stop = self._stops.get(tp)
        self._fetches[tp] = fetch

    def _end_of(self, fetch: PartitionFetch) -> Steps[int]:
        committed = self._options.isolation == "read_committed"
        return (yield from fetch.stream.last_stable_offset() if committed else fetch.stream.latest())

    def _check_lineage(self, fetch: PartitionFetch) -> Steps[None]:
        """Compare the position with the log's leader epochs. If the log was truncated below it, rewind it or raise
        LogTruncatedError.
        """
        epochs, end = (yield from fetch.stream.leader_epochs()), (yield from fetch.stream.latest())
        same = common_end(epochs, fetch.epoch, end)
        same = end if same is None else min(same, end)
        if fetch.position <= same:
            return
        if self._options.on_truncated != "rewind":
            raise LogTruncatedError(
                f"{fetch.tp}: the log was truncated: group {self.group!r} is at offset {fetch.position}, and "
                f"the records from offset {same} on were replaced or removed",
                requested=fetch.position,
                diverged=same,
                hint=f'pass on_truncated="rewind" to continue at offset {same}, or set the position with '
                "`tiered group reset`",
            )
        _logger.warning(
            "position_rewound group=%s partition=%s from=%d to=%d", self.group, fetch.tp, fetch.position, same
        )
        fetch.seek(same, epoch_at(epochs, same - 1))

    def _move_into_range(self, fetch: PartitionFetch, error: OffsetOutOfRangeError) -> Steps[None]:
        """Move a position that is outside the log, or raise ``error`` or LogTruncatedError."""
        earliest, position = (yield from fetch.stream.earliest()), fetch.position
        if position >= earliest:
            yield from self._check_lineage(fetch)
            fetch.drop()
        elif self._options.on_trimmed == "jump":
            _logger.warning(
                "records_trimmed group=%s partition=%s from=%d to=%d", self.group, fetch.tp, position, earliest
            )
            self.skipped += earliest - position
            fetch.seek(earliest)
        else:
            raise error

    @property
    def commits_by_itself(self) -> bool:
        """Return True if ``commit_every`` was given."""
        return self._options.commit_every_s < math.inf

    # -- positions ---------------------------------------------------------------------------------------------------

    def handed_out(self) -> dict[TopicPartition, Position]:
        """Return the positions of partitions whose position has changed since the last commit."""
        return {
            tp: Position(fetch.position, fetch.epoch)
            for tp, fetch in self._fetches.items()
            if fetch.position != self._committed.get(tp)
        }

    def commit_now(self, given: Mapping[TopicPartition, Position | int] | None, *, later: bool) -> Steps[None]:
        """Store the positions after the last returned records, or ``given``. ``later``: leave it to a later call.

        Raises the error of an earlier deferred commit, without storing anything.
        """
        self.check_open()
        wanted = self.handed_out() if given is None else self.checked(given)
        if later:
            self._deferred.update(wanted)
            return
        self._raise_failure()
        yield from self.commit(wanted)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def commit(self, positions: Mapping[TopicPartition, Position]) -> Steps[None]:
        """Store the deferred positions, and ``positions``."""
        deferred, self._deferred = self._deferred, {}
        yield from self.store({**deferred, **positions})

    def store(self, positions: Mapping[TopicPartition, Position]) -> Steps[None]:
        """Store positions, with the present time as commit time. Raise the first error after all were tried."""
        if not positions:
            return
        clocks: Clocks = yield Now()
        self._stored_s = clocks.monotonic
        stamped = self.stamped(positions, clocks.now_ms)
        errors: Mapping[TopicPartition, TieredError]
        errors = yield Blocking(partial(self.assignment.commit, stamped))
        self.note_committed({tp: each for tp, each in stamped.items() if tp not in errors})
        for tp, error in errors.items():
            _logger.warning("position_not_committed group=%s partition=%s error=%s", self.group, tp, error)
        for error in errors.values():
            raise error

    @staticmethod
    def stamped(positions: Mapping[TopicPartition, Position], now_ms: int) -> dict[TopicPartition, Position]:
        """Return the positions with ``now_ms`` as their commit time."""
        return {tp: Position(each.offset, each.leader_epoch, each.metadata, now_ms) for tp, each in positions.items()}

    def note_committed(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Record that these positions are stored now."""
        self._committed.update(
            {tp: each.offset for tp, each in positions.items() if tp in self._fetches or tp in self._new}
        )

    def checked(self, positions: Mapping[TopicPartition, Position | int]) -> dict[TopicPartition, Position]:
        """Return the positions that a caller gave. Raises ConfigError for a wrong type or a negative offset."""
        found = {}
        for tp, given in arguments.instance("positions", positions, dict, "{TopicPartition: offset}").items():
            position = given if isinstance(given, Position) else Position(arguments.whole("offset", given, least=0))
            found[TopicPartition(*tp)] = position
        return found

    def each(self, partitions: Collection[TopicPartition] | None = None) -> Steps[list[PartitionFetch]]:
        """Return the fetches of these partitions, or of all. Raises UnknownTopicError if one is not assigned."""
        yield from self.apply_changes()
        if partitions is None:
            return list(self._fetches.values())
        for tp in partitions:
            if tp not in self._fetches:
                raise UnknownTopicError(
                    f"{tp} is not assigned to this consumer", hint="assignment() names the partitions"
                )
        return [self._fetches[TopicPartition(*tp)] for tp in partitions]

    def assigned(self) -> Iterator[TopicPartition]:
        """Iterate over the partitions that this consumer reads now."""
        return iter(tuple(self._fetches))

    def seek(self, tp: TopicPartition, offset: int) -> Steps[None]:
        """Set the position of ``tp`` to ``offset``, even if the position to start at cannot be found."""
        offset = arguments.whole("offset", offset, least=0)
        yield from self._poll_assignment()
        if tp in self._new:
            self._new[tp] = Position(offset)
        (fetch,) = yield from self.each([tp])
        fetch.seek(offset)
        self._last_s = -math.inf

    def seek_to(self, partitions: Collection[TopicPartition] | None, *, end: bool) -> Steps[None]:
        for fetch in (yield from self.each(partitions)):
            yield from fetch.stream.refresh()
            fetch.seek((yield from self._end_of(fetch) if end else fetch.stream.earliest()))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, Time]
    ) -> Steps[dict[TopicPartition, tuple[int, int] | None]]:
        """Return (offset, timestamp) of the first record at or after each time. None: there is no such record."""
        clocks: Clocks = yield Now()
        found = {}
        for fetch in (yield from self.each(times.keys())):
            at = parse_time(times[fetch.tp], now_ms=clocks.now_ms)
            found[fetch.tp] = yield from fetch.stream.offset_for_time(at)
        return found

    def positions(self, partitions: Collection[TopicPartition] | None = None) -> Steps[dict[TopicPartition, int]]:
        return {fetch.tp: fetch.position for fetch in (yield from self.each(partitions))}

    def committed(self, partitions: Collection[TopicPartition]) -> Steps[dict[TopicPartition, Position]]:
        """Return the stored positions of these partitions, of all if ``partitions`` is empty."""
        wanted = list(map(TopicPartition._make, partitions)) or [fetch.tp for fetch in (yield from self.each())]
        return dict((yield Blocking(partial(self.assignment.committed, wanted))))

    def lag(self) -> Steps[dict[TopicPartition, int]]:
        """Return the number of offsets between the position and the end of each partition."""
        found = {}
        for fetch in (yield from self.each()):
            yield from fetch.stream.refresh()
            found[fetch.tp] = max(0, (yield from self._end_of(fetch)) - fetch.position)
        return found

    def subscribe(self, topics: str | Iterable[str]) -> Steps[None]:
        names = [topics] if isinstance(topics, str) else list(topics)
        yield Blocking(partial(self.assignment.subscribe, names))

    def assign(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        yield Blocking(partial(self.assignment.assign, list(partitions)))

    # -- the end -----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """End a waiting poll, which then raises ClosedError. Any thread may call it."""
        self.closed = True
        self._signal.set()

    def settle(self) -> Steps[None]:
        """Store the deferred positions. Raises the error of an earlier deferred commit instead."""
        self._raise_failure()
        yield from self.commit({})

    def close(self) -> Steps[None]:
        """Leave the group, without a commit."""
        self.closed = self.left = True
        self._stack.close()
        for fetch in tuple(self._fetches.values()):
            yield from self._drop(fetch)
        yield Blocking(self.assignment.close)
