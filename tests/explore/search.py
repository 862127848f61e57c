"""Every state that some processes and a store can come to, one request at a time, breadth first.

A state is the store, the requests that are still on their way to it, what every process waits for, how many faults are
left, and what ``truth`` remembers. From each, every process may go on, with every outcome of its request; a request
that is on its way may arrive. Equal states are one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tests.explore import truth
from tests.explore.bucket import Objects, Request
from tests.explore.machine import Disk
from tests.explore.process import Answer, Edge, Halted, Processes, Program, Report, Runner, remembering
from tests.explore.programs import writer
from tests.explore.truth import Memory, Violated
from tiered.errors import RemotePermissionError, RemoteUnavailableError
from tiered.format.keys import parse_hist_key
from tiered.store.base import Absent, Delete, Get, Head, List, Match, Put, PutResult, PutStatus

UNKNOWN = Answer(PutResult(PutStatus.UNKNOWN, cause="no answer"))
FORBIDDEN = Answer(error=RemotePermissionError)
UNAVAILABLE = Answer(error=RemoteUnavailableError)

# What a request can come to: its name, the answer, and whether the request stays on its way to the store.
PUT_FAULTS = (
    ("no answer", UNKNOWN, True),
    ("no answer before the deadline", replace(UNKNOWN, late=True), True),
    ("409", Answer(PutResult(PutStatus.CONFLICT)), False),
    ("403", FORBIDDEN, True),
)
DELETE_FAULTS = (("no answer", UNAVAILABLE, True), ("403", FORBIDDEN, True))
READ_FAULTS = (
    ("no answer", UNAVAILABLE, False),
    ("no answer before the deadline", replace(UNAVAILABLE, late=True), False),
)
FAULTS = {Put: PUT_FAULTS, Delete: DELETE_FAULTS}
NOTHING = Memory()
CRASHES = (("crash before", False), ("crash after sending", True))


@dataclass(frozen=True)
class Scene:
    """Processes by name on their disks, and what the store holds when they begin.

    ``copied``: a volume may be there twice, so that neither of the two has to be granted a claim.
    """

    name: str
    programs: Mapping[str, Program]
    objects: Objects
    disks: Mapping[str, Disk]
    memory: Any = NOTHING
    judge: Any = truth
    """What must hold: ``changed`` and ``told`` of ``truth``, which also says how a log is gone on with."""
    copied: bool = False
    lists: bool = False
    deletes: bool = False


class State(NamedTuple):
    """Numbers of what makes up a state; equal numbers are equal things."""

    store: int
    wires: frozenset[int]
    nodes: tuple[int, ...]
    faults: int
    memory: int


class Move(NamedTuple):
    """Who did what, for a schedule: ``who`` is the number of a process, or -1 for a request that arrives late."""

    who: int
    what: str


@dataclass
class Counts:
    """What was looked at."""

    states: int = 0
    transitions: int = 0
    merged: int = 0
    ends: int = 0
    stores: int = 0
    process_states: int = 0
    deepest: int = 0
    continued: int = 0
    whole: bool = True
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.merged:,} to a known state, "
            f"{self.stores:,} stores, {self.process_states:,} states of processes, {self.ends:,} ends, "
            f"{self.deepest} steps deep, {self.continued:,} gone on with, {self.seconds:.1f} s of one core"
        )

    def add(self, other: Counts) -> None:
        """The sums, of the depths the largest."""
        for name in ("states", "transitions", "merged", "ends", "stores", "process_states", "continued", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.deepest = max(self.deepest, other.deepest)
        self.whole = self.whole and other.whole


@dataclass
class Interned:
    """Things by number."""

    numbers: dict[Any, int] = field(default_factory=dict)
    things: list[Any] = field(default_factory=list)

    def of(self, thing: Any) -> int:
        number = self.numbers.get(thing)
        if number is None:
            number = self.numbers[thing] = len(self.things)
            self.things.append(thing)
        return number


class Search:
    """One scene. ``faults``: how many at most in one run, crashes included. ``most``: states, then it stops."""

    def __init__(self, scene: Scene, faults: int, most: int | None = None) -> None:
        self.scene = scene
        self.names = tuple(scene.programs)
        self.processes = Processes(scene.programs)
        self.counts = Counts()
        self._faults = faults
        self._most = most
        self._stores, self._memories, self._requests = Interned(), Interned(), Interned()
        self._applied: dict[tuple[int, int], tuple[int, Any, int]] = {}
        self._outcomes = Interned()
        self._changed: dict[tuple[int, int, int, bool], int] = {}
        self._told: dict[tuple[tuple[Report, ...], int, int], int] = {}
        self._numbers: list[int] = []
        self._continued: set[Any] = set()
        self._seen: dict[State, int] = {}
        self._from: list[tuple[int, Move]] = []

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self) -> Counts:
        """All of it. Raises Violated, whose notes are a schedule that leads there."""
        with remembering():
            return self._run()

    def _run(self) -> Counts:
        begun = time.process_time()
        memory, nodes = self._memories.of(self.scene.memory), list[int]()
        store = self._stores.of(self.scene.objects)
        self._continue(self.scene.objects)
        for name in self.names:
            edge = self.processes.birth(name, 0, self.scene.disks[name])
            memory = self._report(edge.reports, store, memory)
            nodes.append(edge.node.number)
        first = State(store, frozenset(), tuple(nodes), self._faults, memory)
        self._seen[first] = 0
        self._from.append((-1, Move(-1, "")))
        queue, depths = deque([first]), deque([0])
        while queue:
            state, depth = queue.popleft(), depths.popleft()
            here = self._seen[state]
            self.counts.deepest = max(self.counts.deepest, depth)
            try:
                for move, after in self._moves(state):
                    self.counts.transitions += 1
                    if after in self._seen:
                        self.counts.merged += 1
                        continue
                    self._seen[after] = len(self._from)
                    self._from.append((here, move))
                    queue.append(after)
                    depths.append(depth + 1)
            except (Violated, Halted) as error:
                self._explain(error, here)
                raise
            if self._most is not None and len(self._from) > self._most:
                self.counts.whole = False
                break
        self.counts.states, self.counts.stores = len(self._from), len(self._stores.things)
        self.counts.process_states = len(self.processes.nodes)
        self.counts.seconds = time.process_time() - begun
        return self.counts

    def _explain(self, error: AssertionError, at: int) -> None:
        error.add_note(f"scene {self.scene.name}, {self._faults} faults at most; the schedule that leads there:")
        moves = [self._last] if self._last is not None else []
        while at > 0:
            at, move = self._from[at]
            moves.append(move)
        for number, move in enumerate(reversed(moves), 1):
            error.add_note(f"{number:4} {self.names[move.who] if move.who >= 0 else 'the wire':12} {move.what}")

    # -- moves -----------------------------------------------------------------------------------------------------

    _last: Move | None = None

    def _moves(self, state: State) -> Iterator[tuple[Move, State]]:
        self._last = None
        waiting = [(who, number) for who, number in enumerate(state.nodes) if self._node(number).request is not None]
        for who, number in waiting:
            if self._quiet(self._node(number), state.wires):
                yield from self._moves_of(state, who)  # nobody else can see it, or change its answer
                return
        for who, _ in waiting:
            yield from self._moves_of(state, who)
        for wire in sorted(state.wires):
            yield self._arrival(state, wire)
        if not waiting:
            self._end(state)

    def _node(self, number: int) -> Any:
        return self.processes.nodes[number]

    def _quiet(self, node: Any, wires: frozenset[int]) -> bool:
        """Whether a request commutes with every request of the others, and changes nothing that ``truth`` looks at."""
        request = node.request
        if self._number_of(node) in wires:
            return False
        key = getattr(request, "key", "")
        if "/s/" not in key and "/p/" not in key and not _is_copy(request):
            return False
        return not self.scene.lists if isinstance(request, Put) else not self.scene.deletes

    def _moves_of(self, state: State, who: int) -> Iterator[tuple[Move, State]]:
        node = self._node(state.nodes[who])
        request = node.request
        number = self._number_of(node)
        what = _words(request)
        store, outcome, outcome_number = self._apply(state.store, number)
        self._last = Move(who, f"{what} -> {_said(outcome)}")
        edge = self.processes.follow(node, Answer(outcome), outcome_number)
        yield self._last, self._after(state, who, edge, store, state.wires)
        if not state.faults or (_is_copy(request) and not self.scene.lists):
            return
        spent = state._replace(faults=state.faults - 1)
        faults = (
            PUT_FAULTS if isinstance(request, Put) else DELETE_FAULTS if isinstance(request, Delete) else READ_FAULTS
        )
        for disk in edge.disks[1:-1]:
            self._last = Move(who, f"{what} -> {_said(outcome)}, then a crash between two writes to its disk")
            born = self.processes.birth(node.name, node.life + 1, disk)
            yield self._last, self._after(spent, who, born, store, state.wires)
        for name, answer, sent in faults:
            self._last = Move(who, f"{what} -> {name}")
            edge = self.processes.follow(node, answer, name)
            if not sent and self._asks_again(node, edge):
                continue  # the same state with a fault less
            wires = self._with_wire(state, number) if sent else state.wires
            yield self._last, self._after(spent, who, edge, state.store, wires)
        for name, sent in CRASHES:
            wires = self._with_wire(state, number) if sent else state.wires
            if sent and wires == state.wires:
                continue
            self._last = Move(who, f"{what} -> {name}")
            edge = self.processes.birth(node.name, node.next_life, node.disk)
            yield self._last, self._after(spent, who, edge, state.store, wires)

    def _asks_again(self, node: Any, edge: Edge) -> bool:
        """Whether the process sends the very same request once more, and only counts its attempts."""
        after = edge.node
        if edge.reports or after.disk != node.disk or after.request is None:
            return False
        return self._number_of(after) == self._number_of(node)

    def _after(self, state: State, who: int, edge: Edge, store: int, wires: frozenset[int]) -> State:
        memory = state.memory
        if store != state.store:
            memory = self._change(state.store, store, memory, delayed=False)
            wires = self._live(wires, store)
        memory = self._report(edge.reports, store, memory)
        nodes = (*state.nodes[:who], edge.node.number, *state.nodes[who + 1 :])
        return State(store, wires, nodes, state.faults, memory)

    def _arrival(self, state: State, wire: int) -> tuple[Move, State]:
        store, outcome, _ = self._apply(state.store, wire)
        self._last = Move(-1, f"{_words(self._requests.things[wire])} arrives late -> {_said(outcome)}")
        memory, wires = state.memory, state.wires - {wire}
        if store != state.store:
            memory = self._change(state.store, store, memory, delayed=True)
            wires = self._live(wires, store)
        return self._last, State(store, wires, state.nodes, state.faults, memory)

    def _with_wire(self, state: State, number: int) -> frozenset[int]:
        return state.wires | self._live(frozenset({number}), state.store)

    def _live(self, wires: frozenset[int], store: int) -> frozenset[int]:
        """Those requests on their way that may still have an effect. ETags never come back: no version does."""
        if not wires:
            return wires
        held = self._stores.things[store].held
        gone = set()
        for wire in wires:
            request = self._requests.things[wire]
            if isinstance(request, Put) and isinstance(request.condition, Match):
                if request.key not in held or held[request.key].etag != request.condition.etag:
                    gone.add(wire)
            elif isinstance(request, Put) and request.key in held and not self.scene.deletes:
                gone.add(wire)
        return wires - gone

    # -- looked up -------------------------------------------------------------------------------------------------

    def _number_of(self, node: Any) -> int:
        while len(self._numbers) <= node.number:
            self._numbers.append(-1)
        if self._numbers[node.number] < 0:
            self._numbers[node.number] = self._requests.of(_Sent.of(node.request))
        return self._numbers[node.number]

    def _apply(self, store: int, request: int) -> tuple[int, Any, int]:
        key = store, request
        found = self._applied.get(key)
        if found is None:
            objects, outcome = self._stores.things[store].apply(self._requests.things[request].request)
            found = self._applied[key] = self._stores.of(objects), outcome, self._outcomes.of(outcome)
        return found

    def _change(self, before: int, after: int, memory: int, *, delayed: bool) -> int:
        key = before, after, memory, delayed
        found = self._changed.get(key)
        if found is None:
            things = self._stores.things
            new = self.scene.judge.changed(
                things[before], things[after], self._memories.things[memory], delayed=delayed
            )
            found = self._changed[key] = self._memories.of(new)
            self._continue(things[after])
        return found

    def _report(self, reports: tuple[Report, ...], store: int, memory: int) -> int:
        if not reports:
            return memory
        key = reports, store, memory
        found = self._told.get(key)
        if found is None:
            new = self._memories.things[memory]
            for report in reports:
                new = self.scene.judge.told(report, self._stores.things[store], new)
            found = self._told[key] = self._memories.of(new)
        return found

    # -- ends ------------------------------------------------------------------------------------------------------

    def _continue(self, objects: Objects) -> None:
        """On every root that comes to be, a fresh machine can claim, upload and read back.

        It has no records: roots that differ by nothing but random ids are one to it.
        """
        if self.scene.judge is not truth:
            return
        likeness = truth.catalog_of(objects).likeness
        if likeness in self._continued:
            return
        self._continued.add(likeness)
        self.counts.continued += 1
        healthy(objects, Disk("fresh"))

    def _end(self, state: State) -> None:
        """Nobody has anything more to do: who owns the partition may go on with it."""
        self.counts.ends += 1
        if self.scene.judge is not truth:
            return
        objects = self._stores.things[state.store]
        root = truth.catalog_of(objects).root
        for who, number in enumerate(state.nodes):
            disk = self._node(number).disk
            if disk.volume != root.writer.volume or self.scene.copied:
                continue
            key = truth.ROOT_KEY, objects.held[truth.ROOT_KEY].etag, disk
            if key not in self._continued:
                self._continued.add(key)
                self.counts.continued += 1
                self._last = Move(who, "begins once more, undisturbed")
                healthy(objects, replace(disk, made=0))


def healthy(objects: Objects, disk: Disk) -> Objects:
    """One undisturbed life of a writer, from claim to acknowledgement. Raises Violated if it does not come so far."""
    runner = Runner("healthy", 0, writer(disk.made + 1 + len(disk.segments), owner="healthy"), disk)
    return undisturbed(runner, objects, ("claimed", "acked"))[0]


def undisturbed(
    runner: Runner, objects: Objects, expected: Sequence[str] = (), memory: Memory = NOTHING
) -> tuple[Objects, Disk, Memory]:
    """A process from its beginning to its end, while nobody else does anything."""
    told: list[Report] = []
    mark = runner.give(None)
    while True:
        while mark is not None:
            mark = runner.give(None)
        reports, _ = runner.take()
        for report in reports:
            memory = truth.told(report, objects, memory)
        told += reports
        if runner.request is None:
            break
        after, outcome = objects.apply(runner.request)
        if after != objects and truth.ROOT_KEY in objects.held:
            memory = truth.changed(objects, after, memory, delayed=False)
        objects = after
        mark = runner.give(Answer(outcome))
    kinds = [report.kind for report in told]
    if missing := [kind for kind in expected if kind not in kinds]:
        raise Violated(f"an undisturbed {runner.machine.disk.volume} was not {missing}: {told}")
    return objects, runner.machine.disk, memory


@dataclass(frozen=True)
class _Sent:
    """A request as what it does: bodies count by their bytes."""

    request: Request = field(compare=False)
    key: Any

    @classmethod
    def of(cls, request: Request) -> _Sent:
        if isinstance(request, Put):
            body = request.body if isinstance(request.body, bytes) else request.body.read_at(0, request.body.size)
            return cls(replace(request, body=body), (request.key, hash(body), body, request.condition))
        return cls(request, request)


def _is_copy(request: Any) -> bool:
    """Copies of roots and lines for people: no protocol rests on them."""
    match request:
        case Put(key) | Get(key) | Head(key):
            return "/hist/" in key or key.startswith("jobs/")
        case List(prefix):
            return prefix.endswith("/hist/")
        case Delete(keys):
            return all(parse_hist_key(key) is not None for key in keys)
    return False


def _words(request: Any) -> str:
    sent = request.request if isinstance(request, _Sent) else request
    match sent:
        case Put(key):
            how = "create" if isinstance(sent.condition, Absent) else f"replace {sent.condition.etag[1:9]}"
            return f"PUT {_short(key)} ({how})"
        case Delete(keys):
            return f"DELETE {', '.join(_short(key) for key in keys)}"
        case List(prefix):
            return f"LIST {_short(prefix)}"
        case _:
            return f"{type(sent).__name__.upper()} {_short(sent.key)}"


def _short(key: str) -> str:
    return key.removeprefix(truth.PREFIX)


def _said(outcome: Any) -> str:
    if isinstance(outcome, PutResult):
        return f"{outcome.status.value} {outcome.etag[1:9]}".strip()
    etag = getattr(outcome, "etag", "")
    return f"{type(outcome).__name__} {etag[1:9]}".strip()
