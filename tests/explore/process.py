"""What a process can be in: a tree of the answers that it was given, in which equal ends of operations are one.

A generator cannot be copied, so a state of a process is what leads to it: its program, the disk that it began with and
the answers since. Each is computed once, by replaying them, and then looked up. Where a program says ``Mark``, nothing
but what it names there is carried on: marks that are equal, on equal disks, are one state, whatever came before.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.explore.bucket import Request
from tests.explore.machine import START_MS, Disk, Machine
from tiered.errors import TieredError
from tiered.format import root as root_format
from tiered.format.root import Root
from tiered.plan import invariants
from tiered.remote import root_view
from tiered.remote.catalog_view import CatalogView, PageCache
from tiered.store.base import Backoff, Begin, Blocking, NewId, Now, Take, Time, Together

LATE_SECONDS = 100_000.0
"""What a late answer takes: longer than every deadline."""
LIVE = 4000
"""Generators that are kept; of others the answers are given again."""


@dataclass(frozen=True)
class Mark:
    """Between two operations. ``carried`` is all that the program goes on with, beside its disk."""

    key: tuple[Any, ...]
    carried: tuple[Any, ...] = ()
    once: bool = False
    """A life comes to this key at most once, so that ids are named by it, however many were taken before."""


@dataclass(frozen=True)
class Report:
    """What an operation told its caller: ``kind`` names the rule of ``truth`` that it is held against."""

    kind: str
    what: tuple[Any, ...] = ()


class Remembered:
    """Pure functions of the product that are asked the same again and again, with a memory, and a replay in short.

    What was checked when a process first came to a state is not checked when it is brought there once more: a check
    that fails ends the search.
    """

    def __init__(self) -> None:
        self.replaying = False
        self._roots: dict[tuple[bytes, str], Root] = {}

    def decode_root(self, data: bytes, *, key: str) -> Root:
        found = self._roots.get((data, key))
        if found is None:
            found = self._roots[data, key] = root_format.decode_root(data, key=key)
        return found

    def check_root(self, root: Root, previous: Root | None = None) -> list[Any]:
        return [] if self.replaying else invariants.check_root(root, previous)


REMEMBERED = Remembered()


@contextmanager
def remembering() -> Iterator[None]:
    """While a search runs."""
    before = root_view.decode_root, root_view.check_root
    root_view.decode_root, root_view.check_root = REMEMBERED.decode_root, REMEMBERED.check_root  # type: ignore[assignment]
    try:
        yield
    finally:
        root_view.decode_root, root_view.check_root = before


Program = Callable[[Machine], Generator[Any, Any, None]]


@dataclass(frozen=True)
class Answer:
    """What came of a request: a value, or an error to be thrown, and whether it came after every deadline."""

    value: Any = None
    error: type[TieredError] | None = None
    late: bool = False


class Halted(AssertionError):
    """A program ended in an error that none of its operations may raise."""


class Runner:
    """One life of a process, driven to its next request."""

    def __init__(self, name: str, life: int, program: Program, disk: Disk) -> None:
        self.machine = Machine(disk)
        self._steps = program(self.machine)
        self._name = f"{name}/{life}"
        self.marks: Any = 0
        self._ids = 0
        self.used_ids = False
        """True if this life has taken an id: only then the next life must not take the same ones."""
        self._monotonic = 0.0
        self._together: list[Any] = []
        self._outcomes: list[Any] = []
        self._gathers = self._begun = self._errors = False
        self.request: Request | None = None
        self.reports: list[Report] = []
        self.disks: list[Disk] = [disk]

    def give(self, answer: Answer | None) -> Mark | None:
        """Runs on from an answer (None: the beginning, or a mark) to the next request, or to a mark."""
        outcome: Any = None
        if answer is not None:
            self._monotonic += LATE_SECONDS if answer.late else 0.0
            outcome = answer.error("as the explorer wants it") if answer.error is not None else answer.value
            if self._gathers:
                self._outcomes.append(outcome)
                if self._together:
                    self.request = self._together.pop(0)
                    return None
                self._gathers = False
                failed = [each for each in self._outcomes if isinstance(each, TieredError) and not self._errors]
                outcome = failed[0] if failed else tuple(self._outcomes)
            elif self._begun:
                self._begun, outcome = False, (outcome,)  # a ticket
        return self._run(outcome)

    def _run(self, outcome: Any) -> Mark | None:
        while True:
            try:
                request = self._steps.throw(outcome) if isinstance(outcome, TieredError) else self._steps.send(outcome)
            except StopIteration:
                self.request = None
                return None
            except Exception as error:
                raise Halted(f"{self._name} ended with {type(error).__name__}: {error}") from error
            outcome = None
            match request:
                case Mark():
                    self.marks = request.key if request.once else self.marks + (self._ids > 0)  # no id comes twice
                    self._ids, self._monotonic = 0, 0.0
                    return request
                case Report():
                    self.reports.append(request)
                case Now():
                    outcome = Time(START_MS, self._monotonic)
                case NewId():
                    self._ids += 1
                    self.used_ids = True
                    text = f"{self._name}/{self.marks}/{self._ids}"
                    outcome = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
                case Backoff():
                    pass
                case Blocking(call):
                    outcome = self._block(call)
                case Take(ticket):
                    (outcome,) = ticket  # type: ignore[misc]
                case Begin(wanted):
                    self._begun, self.request = True, wanted  # type: ignore[assignment]
                    return None
                case Together((first, *others), errors):
                    self._gathers, self._together, self._outcomes, self._errors = True, others, [], errors
                    self.request = first
                    return None
                case _:
                    self.request = request
                    return None

    def _block(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except TieredError as error:
            return error
        finally:
            if self.machine.disk != self.disks[-1]:
                self.disks.append(self.machine.disk)

    def take(self) -> tuple[tuple[Report, ...], tuple[Disk, ...]]:
        """What was told, and the disks there were, since the last time."""
        if self.machine.disk != self.disks[-1]:
            self.disks.append(self.machine.disk)
        taken = tuple(self.reports), tuple(self.disks)
        self.reports, self.disks = [], [self.machine.disk]
        return taken


@dataclass(eq=False)
class Node:
    """A process waiting for ``request``, or ended (None). ``edges``: by answer, where it comes to."""

    number: int
    name: str
    life: int
    disk: Disk
    request: Request | None
    next_life: int
    origin: Disk | None = None
    before: tuple[Node, Answer] | None = field(default=None, repr=False)
    edges: dict[Any, Edge] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Edge:
    """To where an answer leads; what the process told on the way and the disks that it had, the first to the last."""

    node: Node
    reports: tuple[Report, ...]
    disks: tuple[Disk, ...]


class Processes:
    """All states of all processes, as far as they were met."""

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self.programs = programs
        self.nodes: list[Node] = []
        self._births: dict[tuple[str, int, Disk], Edge] = {}
        self._marks: dict[Any, Edge] = {}
        self._ended: dict[tuple[str, Disk], Node] = {}
        self._live: OrderedDict[int, Runner] = OrderedDict()

    def birth(self, name: str, life: int, disk: Disk) -> Edge:
        """A process that begins on ``disk``."""
        key = name, life, disk
        if key not in self._births:
            runner = Runner(name, life, self.programs[name], disk)
            edge = self._births[key] = self._advance(runner, None, name, life, None)
            edge.node.origin = disk
        return self._births[key]

    def follow(self, node: Node, answer: Answer, key: Any) -> Edge:
        """Where ``answer`` leads from ``node``; ``key`` stands for it."""
        edge = node.edges.get(key)
        if edge is None:
            runner = self._live.pop(node.number, None) or self._replayed(node)
            edge = node.edges[key] = self._advance(runner, answer, node.name, node.life, (node, answer))
        return edge

    def _advance(
        self, runner: Runner, answer: Answer | None, name: str, life: int, before: tuple[Node, Answer] | None
    ) -> Edge:
        mark = runner.give(answer)
        reports, disks = runner.take()
        if mark is None:
            return Edge(self._add(runner, name, life, before), reports, disks)
        key = name, life, runner.marks, mark.key, runner.machine.disk, digest(mark.carried)
        after = self._marks.get(key)
        if after is None:
            after = self._marks[key] = self._after_mark(runner, name, life, before)
        return Edge(after.node, reports + after.reports, disks + after.disks[1:])

    def _after_mark(self, runner: Runner, name: str, life: int, before: tuple[Node, Answer] | None) -> Edge:
        return self._advance(runner, None, name, life, before)

    def _add(self, runner: Runner, name: str, life: int, before: tuple[Node, Answer] | None) -> Node:
        after = life + runner.used_ids
        if runner.request is None:  # nothing of its life matters any more, but its disk
            ended = self._ended.get((name, runner.machine.disk))
            if ended is not None:
                return ended
        node = Node(len(self.nodes), name, life, runner.machine.disk, runner.request, after, before=before)
        self.nodes.append(node)
        if node.request is None:
            self._ended[name, node.disk] = node
        if node.request is not None:
            self._live[node.number] = runner
            if len(self._live) > LIVE:
                self._live.popitem(last=False)
        return node

    def _replayed(self, node: Node) -> Runner:
        """A process that was given again all that led to ``node`` the first time."""
        answers: list[Answer] = []
        at: Node = node
        while at.before is not None:
            at, answer = at.before
            answers.append(answer)
        assert at.origin is not None
        runner = Runner(node.name, node.life, self.programs[node.name], at.origin)
        REMEMBERED.replaying = True
        try:
            _to_request(runner, None)
            for answer in reversed(answers):
                _to_request(runner, answer)
        finally:
            REMEMBERED.replaying = False
        runner.take()
        assert runner.request == node.request, "a program that does not repeat itself"
        return runner


def _to_request(runner: Runner, answer: Answer | None) -> None:
    mark = runner.give(answer)
    while mark is not None:
        mark = runner.give(None)


# -- what a program carries on, as a value -----------------------------------------------------------------------------

_LOCK = type(__import__("threading").Lock())


def digest(value: Any) -> Any:
    """Equal for what behaves equally. Raises TypeError for what it does not know: nothing is left out silently."""
    match value:
        case None | bool() | int() | str() | bytes() | float() | UUID() | Path() | Enum():
            return value
        case Root():
            return "root", value.version, value.commit.id
        case CatalogView():
            return "snapshot", digest(value.root)
        case PageCache():
            return "pages", tuple(value._held)
        case Machine():
            return "machine"
        case tuple() | list():
            return tuple([digest(each) for each in value])
        case set() | frozenset():
            return frozenset([digest(each) for each in value])
        case Mapping():
            return tuple([(digest(key), digest(each)) for key, each in value.items()])
        case types.FunctionType() | types.MethodType() | types.BuiltinFunctionType() | functools.partial():
            return "code"
    if isinstance(value, _LOCK):
        return "lock"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, *[digest(getattr(value, each.name)) for each in dataclasses.fields(value)]
    if type(value).__module__.startswith(("tiered.", "tests.explore")) and hasattr(value, "__dict__"):
        return type(value).__name__, *[(name, digest(each)) for name, each in sorted(vars(value).items())]
    raise TypeError(f"{type(value)} cannot be carried over a mark: {value!r}")
