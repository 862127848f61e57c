"""What a history has promised at each of its effects, and so what must be found after a crash there.

Every promise carries the number of effects after which it was made. A record is *sent* when a call begins, *kept* when
it returns (it survives a kill), *durable* when a flush has returned (it survives a power cut).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from tiered.model import TopicPartition


class Kind(Enum):
    """What happened to a partition."""

    SENT = auto()
    KEPT = auto()
    DURABLE = auto()
    CUT_BEGUN = auto()
    CUT = auto()
    RESTART_BEGUN = auto()
    RESTARTED = auto()
    START_BEGUN = auto()
    START_DURABLE = auto()


@dataclass(slots=True, eq=False)
class Sent:
    """One batch that a call tried to append; ``raw`` as a producer would send it again."""

    base: int
    values: tuple[tuple[bytes | None, bytes | None], ...]
    pid: int = -1
    transactional: bool = False
    marker: str = ""
    raw: bytes = b""

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.base + len(self.values)


@dataclass(slots=True)
class Event:
    """``at``: how many effects had been made."""

    at: int
    kind: Kind
    offset: int
    sent: Sent | None = None


@dataclass(slots=True)
class Promise:
    """What must be true of a partition. ``floor`` <= end <= ``ceiling``; ``start`` between its two bounds."""

    floor: int = 0
    ceiling: int = 0
    start_floor: int = 0
    start_ceiling: int = 0
    sent: list[Sent] = field(default_factory=list)
    kept: set[Sent] = field(default_factory=set)
    boundaries: set[int] = field(default_factory=lambda: {0})
    holes: set[int] = field(default_factory=set)
    restart: int | None = None

    def expected(self, offset: int) -> Sent | None:
        """The batch that was acknowledged last with this offset."""
        for sent in reversed(self.sent):
            if sent in self.kept and sent.base <= offset < sent.end:
                return sent
        return None

    def candidates(self, offset: int) -> list[Sent]:
        """All that may be found at this offset."""
        return [sent for sent in self.sent if sent.base <= offset < sent.end]


class Ledger:
    """``now`` tells how many effects were made."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.events: dict[TopicPartition, list[Event]] = {}
        self.topics: list[tuple[int, str, str]] = []

    def note(self, tp: TopicPartition, kind: Kind, offset: int = -1, sent: Sent | None = None) -> None:
        """Something happened."""
        self.events.setdefault(tp, []).append(Event(self._now(), kind, offset, sent))

    def topic(self, name: str, what: str) -> None:
        """``creating``, ``created``, ``deleting``, ``deleted``."""
        self.topics.append((self._now(), name, what))

    @property
    def has_gaps(self) -> bool:
        """Whether a cut may have left offsets without records."""
        return any(event.kind is Kind.CUT_BEGUN for events in self.events.values() for event in events)

    def summary(self, at: int, *, power: bool) -> tuple[object, ...]:
        """Equal where the same was promised."""
        promises = []
        for tp in sorted(self.events):
            p = self.promise(tp, at, power=power)
            promises.append(
                (tp, p.floor, p.ceiling, p.start_floor, p.start_ceiling, len(p.sent), len(p.kept), p.restart)
            )
        return (*promises, *sorted(self.topic_states(at).items()))

    def topic_states(self, at: int) -> dict[str, str]:
        """The latest word on each topic."""
        return {name: what for when, name, what in self.topics if when <= at}

    def promise(self, tp: TopicPartition, at: int, *, power: bool) -> Promise:
        """What holds after a crash when ``at`` effects had been made."""
        promise = Promise()
        kept = durable = 0
        for event in self.events.get(tp, []):
            if event.at > at:
                break
            offset, sent = event.offset, event.sent
            match event.kind:
                case Kind.SENT:
                    assert sent is not None
                    promise.sent.append(sent)
                    promise.boundaries.add(sent.end)
                    promise.ceiling = max(promise.ceiling, sent.end)
                case Kind.KEPT:
                    assert sent is not None
                    promise.kept.add(sent)
                    kept = sent.end
                case Kind.DURABLE:
                    durable = max(durable, offset)
                case Kind.CUT_BEGUN:
                    across = [other for other in promise.sent if other.base < offset < other.end]
                    least = min([offset, *(other.base for other in across)])
                    kept, durable = min(kept, least), min(durable, least)
                    promise.boundaries.add(offset)
                    for other in across:
                        promise.holes.update(range(other.base, offset))
                case Kind.CUT:
                    promise.sent = [other for other in promise.sent if other.end <= offset]
                    promise.kept &= set(promise.sent)
                    promise.ceiling = offset
                    promise.start_floor = min(promise.start_floor, offset)
                case Kind.RESTART_BEGUN:
                    kept = durable = promise.start_floor = 0
                    promise.restart = offset
                    promise.boundaries.add(offset)
                    promise.start_ceiling = max(promise.start_ceiling, offset)
                    promise.ceiling = max(promise.ceiling, offset)
                case Kind.RESTARTED:
                    promise.sent, promise.restart = [], None
                    promise.kept = set()
                    promise.ceiling = kept = durable = offset
                    promise.start_floor = promise.start_ceiling = offset
                case Kind.START_BEGUN:
                    promise.start_ceiling = max(promise.start_ceiling, offset)
                case Kind.START_DURABLE:
                    promise.start_floor = max(promise.start_floor, offset)
        promise.floor = durable if power else kept
        while promise.floor - 1 in promise.holes:  # nothing there that could be lost
            promise.floor -= 1
        return promise
