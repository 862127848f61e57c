"""Store that fails where a test wants it to: lost answers, late writes, refusals, damaged bytes."""

from __future__ import annotations

import enum
import fnmatch
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tiered.errors import RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.model import BytesSource
from tiered.store.base import (
    CompleteUpload,
    Delete,
    List,
    ListUploads,
    Object,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    Store,
    StoreAround,
    StoreRequest,
    UploadPart,
)


class FaultKind(enum.Enum):
    """Kinds of failure that :class:`FaultStore` can inject."""

    ERROR = "error"  # raises Fault.error (default RemoteUnavailableError), nothing is applied
    UNKNOWN_BEFORE = "unknown_before"  # a 500 or a timeout, nothing is applied
    UNKNOWN_AFTER = "unknown_after"  # applied, the answer is lost
    DELAYED = "delayed"  # the answer is lost; applied later, by apply_delayed() or after Fault.delay_calls calls
    CONFLICT = "conflict"  # 409 to a conditional PUT, nothing is applied
    PERMISSION = "permission"  # 403
    TRUNCATED = "truncated"  # the second half of the data is missing: read, or stored
    FLIPPED = "flipped"  # one bit in the middle of the data is wrong: read, or stored


@dataclass(frozen=True, slots=True)
class Fault:
    """Rule of a :class:`FaultStore`: which requests fail, and how.

    ``operation``: class name of a request in ``store.base``, in any case, such as ``"put"``; ``"*"``: all. ``key``: a
    glob. The rule counts the requests that match. It fires for ``times`` requests from number ``nth`` (from 1) on; -1:
    for all later ones. ``error``: exception for ``ERROR``, None: RemoteUnavailableError. ``delay_calls``: number of
    requests after which a ``DELAYED`` one is applied, None: only by ``apply_delayed``.
    """

    kind: FaultKind
    operation: str = "*"
    key: str = "*"
    nth: int = 1
    times: int = 1
    error: TieredError | None = None
    delay_calls: int | None = None

    def matches(self, request: StoreRequest) -> bool:
        """Return True if the rule applies to this request."""
        if self.operation not in ("*", type(request).__name__.lower()):
            return False
        return any(fnmatch.fnmatchcase(key, self.key) for key in keys_of(request))


def keys_of(request: StoreRequest) -> tuple[str, ...]:
    """Return the keys in a request; for a listing, its prefix."""
    match request:
        case Delete(keys):
            return keys
        case List(prefix) | ListUploads(prefix):
            return (prefix,)
        case _:
            return (request.key,)


class FaultStore(StoreAround):
    """Wrapper that injects faults into any store. Thread-safe.

    ``calls``: (operation, first key) of all requests. ``fired``: (kind, operation, first key) of requests with a fault.
    ``choose``: returns the kind of fault for a request for which no rule fires, or None. Example:
    ``FaultStore(MemoryStore(), [Fault(FaultKind.UNKNOWN_AFTER, nth=7)])`` loses the 7th answer.
    """

    def __init__(
        self,
        inner: Store,
        faults: Iterable[Fault] = (),
        *,
        choose: Callable[[StoreRequest], FaultKind | None] | None = None,
    ) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, str]] = []
        self.fired: list[tuple[FaultKind, str, str]] = []
        self._faults = [(replace(fault, operation=fault.operation.lower()), [0]) for fault in faults]
        self._choose = choose
        self._delayed: list[tuple[int | None, StoreRequest]] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Add a rule, which counts requests from now on. Earlier rules fire first."""
        with self._lock:
            self._faults.append((replace(fault, operation=fault.operation.lower()), [0]))

    def clear(self) -> None:
        """Remove all rules and the function ``choose``. Delayed requests stay delayed."""
        with self._lock:
            self._faults.clear()
            self._choose = None

    def execute(self, request: StoreRequest) -> Outcome:
        """Execute one request, with a fault if a rule applies."""
        with self._lock:
            number = len(self.calls)
            operation, key = type(request).__name__.lower(), (keys_of(request) or ("",))[0]
            self.calls.append((operation, key))
            fault = self._next_fault(request)
            if fault is not None:
                self.fired.append((fault.kind, operation, key))
                if fault.kind is FaultKind.DELAYED:
                    due = None if fault.delay_calls is None else number + fault.delay_calls
                    self._delayed.append((due, request))
            late = [each for due, each in self._delayed if due is not None and due <= number]
            self._delayed = [(due, each) for due, each in self._delayed if due is None or due > number]
        for each in late:
            self._apply_late(each)
        return self.inner.execute(request) if fault is None else self._failed(fault, request)

    def apply_delayed(self) -> int:
        """Send all delayed requests to the wrapped store, in their order. Return their number."""
        with self._lock:
            late, self._delayed = self._delayed, []
        for _, each in late:
            self._apply_late(each)
        return len(late)

    def _next_fault(self, request: StoreRequest) -> Fault | None:
        fires: Fault | None = None
        for fault, seen in self._faults:
            if fault.matches(request):
                seen[0] += 1
                over = fault.times >= 0 and seen[0] >= fault.nth + fault.times
                if fires is None and seen[0] >= fault.nth and not over:
                    fires = fault
        if fires is None and self._choose is not None:
            kind = self._choose(request)
            return None if kind is None else Fault(kind)
        return fires

    def _failed(self, fault: Fault, request: StoreRequest) -> Outcome:
        match fault.kind:
            case FaultKind.ERROR:
                raise fault.error or RemoteUnavailableError(_about("an injected error", request))
            case FaultKind.PERMISSION:
                raise RemotePermissionError(
                    _about("injected: 403 AccessDenied", request),
                    operation=type(request).__name__,
                    resource=(keys_of(request) or ("",))[0],
                )
            case FaultKind.UNKNOWN_BEFORE | FaultKind.DELAYED:
                return _lost_answer(request)
            case FaultKind.UNKNOWN_AFTER:
                self.inner.execute(request)
                return _lost_answer(request)
            case FaultKind.CONFLICT:
                if isinstance(request, Put | CompleteUpload):
                    return PutResult(PutStatus.CONFLICT, cause="injected: 409 ConditionalRequestConflict")
                return _lost_answer(request)
            case FaultKind.TRUNCATED | FaultKind.FLIPPED:
                return self._damaged(fault.kind, request)

    def _damaged(self, kind: FaultKind, request: StoreRequest) -> Outcome:
        if isinstance(request, Put):
            body = request.body if isinstance(request.body, bytes) else request.body.read_at(0, request.body.size)
            return self.inner.execute(replace(request, body=damage(kind, body), crc32c=None))
        if isinstance(request, UploadPart):
            body = damage(kind, request.body.read_at(request.start, request.end - request.start))
            return self.inner.execute(replace(request, body=BytesSource(body), start=0, end=len(body), crc32c=None))
        outcome = self.inner.execute(request)
        if not isinstance(outcome, Object):
            return outcome
        # Another bit in each answer: bytes that come twice alike are those that the object has.
        return replace(outcome, data=damage(kind, bytes(outcome.body), len(self.fired) - 1), lent=None)

    def _apply_late(self, request: StoreRequest) -> None:
        try:
            self.inner.execute(request)
        except TieredError:
            return  # the caller got its answer long ago


def damage(kind: FaultKind, data: bytes, number: int = 0) -> bytes:
    """Return ``data`` truncated to half, or with one bit in the middle flipped, by ``kind``.

    ``number``: selects the bit.
    """
    middle = len(data) // 2
    if kind is FaultKind.TRUNCATED or not data:
        return data[:middle]
    return data[:middle] + bytes([data[middle] ^ 1 << (4 + number) % 8]) + data[middle + 1 :]


def _lost_answer(request: StoreRequest) -> PutResult:
    if isinstance(request, Put | CompleteUpload):
        return PutResult(PutStatus.UNKNOWN, cause=_about("injected: no answer", request))
    raise RemoteUnavailableError(_about("injected: no answer", request))


def _about(what: str, request: StoreRequest) -> str:
    return f"{what} to {type(request).__name__} {(keys_of(request) or ('',))[0]}"
