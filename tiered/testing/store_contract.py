"""Test suite for implementations of a store. A subclass says how to make an empty store, and pytest runs it.

::

    class TestMyStore(StoreContract):
        verifies_checksum = False              # known deviations are named, not skipped silently

        def make_store(self) -> Store:         # each call: a new, empty place
            return MyStore(...)

        def same_place(self, store) -> Store:  # another client of that place; default: the same client
            return MyStore(...)

Async stores run it through :class:`BlockingStore`. Stores that the suite made are closed after each test. The functions
of this module convert the outcomes of a store to values, and raise AssertionError for other outcomes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from tiered.errors import CorruptionError, NotFoundError, RemoteUnavailableError
from tiered.format.kernels import crc32c
from tiered.model import BytesSource
from tiered.store.base import (
    ABSENT,
    MIN_PART_BYTES,
    AbortUpload,
    AioStore,
    CompleteUpload,
    Delete,
    Deleted,
    Get,
    Head,
    List,
    ListPage,
    Match,
    Missing,
    NotModified,
    Object,
    Outcome,
    PartStored,
    Put,
    PutResult,
    PutStatus,
    StartUpload,
    Store,
    StoreRequest,
    UploadPart,
    UploadStarted,
)
from tiered.store.capabilities import probe
from tiered.store.driver import drive
from tiered.store.steps import list_unfinished, list_versions
from tiered.store.threads import ThreadPool
from tiered.store.unique_upload import put_unique, upload_multipart, verify_stored

T = TypeVar("T")

__all__ = ["BlockingStore", "FilledSource", "StoreContract", "expect_equal", "expect_object", "landed", "listed"]
STALE = '"00000000000000000000000000000000"'


class FilledSource:
    """Byte source (:class:`~tiered.model.FillingSource`) over memory, like the file of a segment."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def size(self) -> int:
        """Return the length in bytes."""
        return len(self.data)

    def read_at(self, position: int, length: int) -> bytes:
        """Return a copy of ``length`` bytes."""
        return self.data[position : position + length]

    def fill_from(self, position: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``position`` on."""
        buffer[:] = self.data[position : position + len(buffer)]

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class BlockingStore:
    """Synchronous :class:`Store` over an asyncio store, on an event loop in a thread of its own. Thread-safe.

    ``make``: creates the asyncio store.
    """

    def __init__(self, make: Callable[[], Awaitable[AioStore]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="blocking-store", daemon=True)
        self._thread.start()
        self.inner: AioStore = self.run(make())

    @property
    def url(self) -> str:
        """Return the URL of the async store."""
        return self.inner.url

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run ``awaitable`` on the event loop, wait for it, and return its result."""

        async def whole() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(whole(), self._loop).result()

    def execute(self, request: StoreRequest) -> Outcome:
        """Execute one request."""
        return self.run(self.inner.execute(request))

    def close(self) -> None:
        """Close the store and its loop."""
        if self._loop.is_closed():
            return
        self.run(self.inner.close())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def expect_equal(actual: Any, expected: Any) -> None:
    """Raise AssertionError with both values unless ``actual == expected``."""
    if actual != expected:
        raise AssertionError(f"{actual!r} is not {expected!r}")


def true(condition: bool, what: str) -> None:
    """Raise AssertionError with the text ``what`` unless ``condition`` is True."""
    if not condition:
        raise AssertionError(f"not so: {what}")


def landed(outcome: Outcome) -> PutResult:
    if isinstance(outcome, PutResult) and outcome.status is PutStatus.LANDED:
        return outcome
    raise AssertionError(f"the store returned {outcome!r} for a write that must land (PutStatus.LANDED)")


def status(outcome: Outcome) -> PutStatus:
    """Return the status in the outcome of a PUT. Raise AssertionError for another outcome."""
    if isinstance(outcome, PutResult):
        return outcome.status
    raise AssertionError(f"{outcome!r} is not the result of a PUT")


def expect_object(outcome: Outcome) -> Object:
    if isinstance(outcome, Object):
        return outcome
    raise AssertionError(f"{outcome!r} is not an object")


def paged(outcome: Outcome) -> ListPage:
    if isinstance(outcome, ListPage):
        return outcome
    raise AssertionError(f"{outcome!r} is not a page")


def started(outcome: Outcome) -> str:
    """Return the upload id in the outcome of a :class:`StartUpload`. Raise AssertionError for another outcome."""
    if isinstance(outcome, UploadStarted):
        return outcome.upload_id
    raise AssertionError(f"{outcome!r} is not the start of an upload")


def part(outcome: Outcome) -> PartStored:
    if isinstance(outcome, PartStored):
        return outcome
    raise AssertionError(f"{outcome!r} is not a part")


def listed(store: Store, prefix: str = "", limit: int = 1000) -> list[str]:
    """Return all keys with ``prefix``, listed in pages of ``limit`` keys, in the order of the store."""
    keys: list[str] = []
    while True:
        page = paged(store.execute(List(prefix, keys[-1] if keys else "", limit)))
        keys.extend(entry.key for entry in page.entries)
        if not page.more:
            return keys
        true(bool(page.entries), "a page that is not the last has entries")


def unfinished(store: Store, prefix: str) -> list[tuple[str, str]]:
    """Return (key, upload id) of the unfinished multipart uploads with ``prefix``, sorted.

    Raise AssertionError if an upload began more than two seconds after the listing, by the store's clock.
    """
    entries, date_ms = drive(store, list_unfinished(prefix))
    true(all(0 < each.started_ms < date_ms + 2000 for each in entries), "begun before they were listed")
    return sorted((each.key, each.upload_id) for each in entries)


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run all calls on threads that start together. Return their results in order."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        gate.wait()
        return call()

    with ThreadPool(len(calls), "at-once") as pool:
        return [future.result() for future in [pool.submit(run, call) for call in calls]]


class StoreContract:
    """Test suite for the promises of ``store.base``. A subclass sets flags for the known deviations of its store."""

    verifies_checksum = True
    """A PUT with a wrong CRC32C is refused."""
    returns_checksum = True
    """HEAD and GET return the CRC32C that was sent."""
    lists_in_order = True
    """LIST is in UTF-8 order of keys."""
    lists_keys_below_keys = True
    """With objects ``a`` and ``a/b``, both are listed."""
    tells_absent = True
    """True: ``If-Match`` on an absent key gives ``ABSENT``. False: it may give ``LOST``."""
    refuses_small_parts = True
    """The completion fails if a part below 5 MiB is not the last."""
    completes_once = True
    """A second completion of the same upload does not succeed."""
    tells_unknown_uploads = True
    """True: a part of an aborted upload gives 404. False: it may give 500."""
    keeps_versions = False
    """Stores of ``make_versioned_store`` keep older versions of objects."""
    race_writers = 8
    race_rounds = 3

    def make_store(self) -> Store:
        """Return a store in a new, empty location. Each subclass defines this."""
        raise AssertionError("a subclass says how to make its store")

    def make_versioned_store(self) -> Store:
        """Return a store in a new, empty location that keeps versions, if the backend can."""
        return self.make_store()

    def same_place(self, store: Store) -> Store:
        """Return another client of the location of ``store``; by default ``store`` itself."""
        return store

    def setup_method(self) -> None:
        """Create the list of stores to close after the test."""
        self._opened: list[Store] = []

    def teardown_method(self) -> None:
        """Close the stores that the test opened."""
        for store in self._opened:
            store.close()

    def store(self) -> Store:
        """Return a new store of :meth:`make_store`, which is closed after the test."""
        store = self.make_store()
        self._opened.append(store)
        return store

    def another(self, store: Store) -> Store:
        """Return another client of the location of ``store``. It is closed after the test."""
        other = self.same_place(store)
        if other is not store:
            self._opened.append(other)
        return other

    # --- one object ---

    def test_absent_key_is_an_outcome(self) -> None:
        store = self.store()
        expect_equal(store.execute(Get("no/such/key")), Missing())
        expect_equal(store.execute(Get("no/such/key", 3, 9)), Missing())
        expect_equal(store.execute(Head("no/such/key")), Missing())

    def test_put_then_get_gives_the_bytes_and_one_etag(self) -> None:
        store = self.store()
        body = bytes(range(256)) * 11
        put = landed(store.execute(Put("a/b.log", body, ABSENT, crc32c(body), (("kind", "segment"),))))
        got, head = expect_object(store.execute(Get("a/b.log"))), expect_object(store.execute(Head("a/b.log")))
        expect_equal((got.data, got.size, got.etag), (body, len(body), put.etag))
        expect_equal((head.data, head.size, head.etag), (b"", len(body), put.etag))
        if self.returns_checksum:
            expect_equal((head.crc32c, got.crc32c), (crc32c(body), crc32c(body)))
        true(put.etag.startswith('"') and put.etag.endswith('"'), f"the ETag {put.etag} keeps its quotes")
        true(got.date_ms > 0 and got.last_modified_ms > 0, "the store returns its clock")

    def test_empty_object(self) -> None:
        store = self.store()
        landed(store.execute(Put("empty", b"", ABSENT)))
        landed(store.execute(Put("empty-source", BytesSource(b""), ABSENT)))
        for key in ("empty", "empty-source"):
            got = expect_object(store.execute(Get(key)))
            expect_equal((got.data, got.size), (b"", 0))
            expect_equal(expect_object(store.execute(Get(key, 0, 10))).data, b"")

    def test_body_from_a_source_of_several_pieces(self) -> None:
        store = self.store()
        body = os.urandom(2 * 1024 * 1024 + 77)
        landed(store.execute(Put("source", BytesSource(body), ABSENT, crc32c(body))))
        landed(store.execute(Put("filled", FilledSource(body), ABSENT, crc32c(body))))
        true(
            expect_object(store.execute(Get("filled"))).data == body,
            "the bytes of a source that fills buffers come back",
        )
        got = expect_object(store.execute(Get("source")))
        true(got.data == body, "the bytes of a source come back")

    def test_ranges(self) -> None:
        store = self.store()
        landed(store.execute(Put("k", b"0123456789", ABSENT)))
        for start, end, wanted in (
            (0, 1, b"0"),
            (3, 7, b"3456"),
            (3, None, b"3456789"),
            (9, 100, b"9"),
            (0, 10, b"0123456789"),
            (4, 4, b""),
            (10, 12, b""),
            (11, None, b""),
            (500, 600, b""),
        ):
            got = expect_object(store.execute(Get("k", start, end)))
            expect_equal((start, end, got.data, got.size), (start, end, wanted, 10))
            true(bool(got.etag), "a range has an ETag")

    def test_a_body_that_may_be_lent_is_the_same_and_stays_so(self) -> None:
        store = self.store()
        body = os.urandom(3 * 1024 * 1024)
        landed(store.execute(Put("k", body, ABSENT)))
        kept = [
            (start, expect_object(store.execute(Get("k", start, start + 2**21, lend=True)))) for start in (0, 7, 2**20)
        ]
        for start, got in (*kept, (2**21, expect_object(store.execute(Get("k", 2**21, 2**23, lend=True))))):
            true(
                bytes(got.body) == body[start : start + 2**21],
                f"the bytes from {start} on, however many were asked for",
            )
            expect_equal((got.size, bool(got.etag)), (len(body), True))
            true(memoryview(got.body).readonly, "a shared body is read-only")
        true(bytes(expect_object(store.execute(Get("k", lend=True))).body) == body, "a whole object")
        expect_equal(store.execute(Get("absent", 0, 2**21, lend=True)), Missing())

    def test_a_body_above_its_limit_is_refused(self) -> None:
        store = self.store()
        landed(store.execute(Put("k", b"0123456789", ABSENT)))
        for request in (Get("k", max_bytes=9), Get("k", 1, max_bytes=8)):
            try:
                got = store.execute(request)
            except CorruptionError as error:
                expect_equal((error.path_or_key, error.position), ("k", request.max_bytes))
            else:
                raise AssertionError(f"{request} gave {got}")
        expect_equal(expect_object(store.execute(Get("k", max_bytes=10))).data, b"0123456789")
        expect_equal(expect_object(store.execute(Get("k", 2, 8, max_bytes=1))).data, b"234567")
        expect_equal(expect_object(store.execute(Get("k", 9, max_bytes=1))).data, b"9")

    def test_not_modified(self) -> None:
        store = self.store()
        put = landed(store.execute(Put("k", b"one", ABSENT)))
        expect_equal(store.execute(Get("k", if_none_match=put.etag)), NotModified())
        expect_equal(expect_object(store.execute(Get("k", if_none_match=STALE))).data, b"one")

    def test_strange_keys(self) -> None:
        store = self.store()
        keys = [
            "a b/c+d/e%20f",
            "ü/日本/€.log",
            "q?x=1&y=2#z",
            "x" * 255 + "/" + "y" * 255,
            ".hidden/~tilde",
            "a.obj/b",
            "=+,;:@!$'()*[]{}|^`\"<>\\~",
        ]
        for key in keys:
            landed(store.execute(Put(key, key.encode(), ABSENT)))
        for key in keys:
            expect_equal(expect_object(store.execute(Get(key))).data, key.encode())
        expect_equal(sorted(listed(store)), sorted(keys))
        expect_equal(store.execute(Delete(tuple(keys))), Deleted())
        expect_equal(listed(store), [])

    # --- conditions ---

    def test_create_only_once_keeps_the_first_body(self) -> None:
        store = self.store()
        landed(store.execute(Put("k", b"first", ABSENT)))
        expect_equal(status(store.execute(Put("k", b"second", ABSENT))), PutStatus.LOST)
        expect_equal(expect_object(store.execute(Get("k"))).data, b"first")

    def test_compare_and_swap(self) -> None:
        store = self.store()
        one = landed(store.execute(Put("k", b"one", ABSENT)))
        two = landed(store.execute(Put("k", b"two", Match(one.etag))))
        true(one.etag != two.etag, "another body has another ETag")
        expect_equal(status(store.execute(Put("k", b"three", Match(one.etag)))), PutStatus.LOST)
        expect_equal(status(store.execute(Put("k", b"three", Match(STALE)))), PutStatus.LOST)
        got = expect_object(store.execute(Get("k")))
        expect_equal((got.data, got.etag), (b"two", two.etag))

    def test_compare_and_swap_of_an_absent_key(self) -> None:
        store = self.store()
        wanted = {PutStatus.ABSENT} if self.tells_absent else {PutStatus.ABSENT, PutStatus.LOST}
        true(status(store.execute(Put("k", b"x", Match(STALE)))) in wanted, "nothing to swap")
        expect_equal(store.execute(Get("k")), Missing())
        put = landed(store.execute(Put("k", b"x", ABSENT)))
        expect_equal(store.execute(Delete(("k",))), Deleted())
        true(status(store.execute(Put("k", b"y", Match(put.etag)))) in wanted, "deleted meanwhile")
        landed(store.execute(Put("k", b"z", ABSENT)))

    def test_one_of_many_creators_wins(self) -> None:
        store = self.store()
        clients = [self.another(store) for _ in range(self.race_writers)]
        for number in range(self.race_rounds):
            key = f"race/{number}"
            puts = [(client, Put(key, b"%d" % i, ABSENT)) for i, client in enumerate(clients)]
            results = at_once([partial(client.execute, put) for client, put in puts])
            winners = [i for i, result in enumerate(results) if status(result) is PutStatus.LANDED]
            expect_equal(len(winners), 1)
            true({status(r) for r in results} <= {PutStatus.LANDED, PutStatus.LOST, PutStatus.CONFLICT}, "clear losers")
            expect_equal(expect_object(store.execute(Get(key))).data, b"%d" % winners[0])

    def test_counter_by_compare_and_swap_loses_nothing(self) -> None:
        store = self.store()
        landed(store.execute(Put("counter", b"0", ABSENT)))
        clients = [self.another(store) for _ in range(4)]

        def add(client: Store) -> None:
            for _ in range(5):
                while True:
                    now = expect_object(client.execute(Get("counter")))
                    body = b"%d" % (int(now.data) + 1)
                    if status(client.execute(Put("counter", body, Match(now.etag)))) is PutStatus.LANDED:
                        break

        at_once([partial(add, client) for client in clients])
        expect_equal(expect_object(store.execute(Get("counter"))).data, b"20")

    def test_wrong_checksum_is_refused_or_named_as_a_deviation(self) -> None:
        store = self.store()
        request = Put("k", b"body", ABSENT, crc32c(b"body") ^ 1)
        try:
            expect_equal(status(store.execute(request)), PutStatus.LANDED)
            refused = False
        except CorruptionError:
            refused = True
            expect_equal(store.execute(Get("k")), Missing())
        expect_equal(refused, self.verifies_checksum)

    # --- deleting and listing ---

    def test_versions_are_listed_newest_first_and_outlive_a_delete(self) -> None:
        store = self.make_versioned_store()
        self._opened.append(store)
        first = landed(store.execute(Put("v", b"one", ABSENT)))
        second = landed(store.execute(Put("v", b"three", Match(first.etag))))
        landed(store.execute(Put("v2", b"another key", ABSENT)))
        if not self.keeps_versions:
            true(len(drive(store, list_versions("v"))) <= 1, "a place without versions lists the current one at most")
            return
        entries = drive(store, list_versions("v"))
        expect_equal([(each.size, each.etag) for each in entries], [(5, second.etag), (3, first.etag)])
        store.execute(Delete(("v",)))
        expect_equal(store.execute(Get("v")), Missing())
        expect_equal(drive(store, list_versions("v")), entries)
        bodies = [expect_object(store.execute(Get("v", version=each.version))).data for each in entries]
        expect_equal(bodies, [b"three", b"one"])
        expect_equal(expect_object(store.execute(Get("v", 1, 3, version=entries[0].version))).data, b"hr")
        expect_equal(drive(store, list_versions("never")), [])

    def test_delete_is_idempotent(self) -> None:
        store = self.store()
        landed(store.execute(Put("k", b"x", ABSENT)))
        expect_equal(store.execute(Delete(("k",))), Deleted())
        expect_equal(store.execute(Delete(("k",))), Deleted())
        expect_equal(store.execute(Delete(("k", "never", "was"))), Deleted())
        expect_equal(store.execute(Get("k")), Missing())

    def test_list_pages_prefixes_and_order(self) -> None:
        store = self.store()
        keys = ["b/1", "b/10", "b/2", "b-1", "b", "c", "ü", "a/x/y", "B/1"]
        if not self.lists_keys_below_keys:
            keys.remove("b")
        for key in keys:
            landed(store.execute(Put(key, key.encode(), ABSENT)))
        ordered = sorted(keys, key=str.encode)
        whole = listed(store)
        expect_equal(whole if self.lists_in_order else sorted(whole, key=str.encode), ordered)
        expect_equal(sorted(listed(store, "b/"), key=str.encode), ["b/1", "b/10", "b/2"])
        expect_equal(sorted(listed(store, "b/1"), key=str.encode), ["b/1", "b/10"])
        expect_equal(listed(store, "nothing/"), [])
        expect_equal(sorted(listed(store, limit=2), key=str.encode), ordered)
        page = paged(store.execute(List("", limit=1)))
        true(page.more and len(page.entries) == 1 and page.date_ms > 0, "one of several, and the store's clock")
        if self.lists_in_order:
            after = paged(store.execute(List("b", start_after="b/10"))).entries
            expect_equal([entry.key for entry in after], ["b/2"])
        entry = paged(store.execute(List("c"))).entries[0]
        expect_equal((entry.key, entry.size, entry.etag), ("c", 1, expect_object(store.execute(Head("c"))).etag))

    # --- multipart ---

    def test_multipart_upload_in_any_order(self) -> None:
        store = self.store()
        body = FilledSource(os.urandom(MIN_PART_BYTES + 1000))
        upload_id = started(store.execute(StartUpload("m", (("kind", "segment"),))))
        tail = part(store.execute(UploadPart("m", upload_id, 2, body, MIN_PART_BYTES, body.size)))
        stale = part(store.execute(UploadPart("m", upload_id, 1, body, 1000, body.size)))
        head = part(store.execute(UploadPart("m", upload_id, 1, body, 0, MIN_PART_BYTES)))
        expect_equal((head.number, tail.number, head.etag == stale.etag), (1, 2, False))
        expect_equal(store.execute(Get("m")), Missing())
        expect_equal(listed(store), [])
        put = landed(store.execute(CompleteUpload("m", upload_id, (head, tail))))
        got = expect_object(store.execute(Get("m")))
        true(got.data == body.data and got.etag == put.etag, "the parts in order, under the returned ETag")
        if self.completes_once:
            again = store.execute(CompleteUpload("m", upload_id, (head, tail)))
            true(status(again) in (PutStatus.LOST, PutStatus.UNKNOWN), "a completion is not repeated")

    def test_completion_is_create_only(self) -> None:
        store = self.store()
        landed(store.execute(Put("m", b"here first", ABSENT)))
        upload_id = started(store.execute(StartUpload("m")))
        only = part(store.execute(UploadPart("m", upload_id, 1, BytesSource(b"late"), 0, 4)))
        expect_equal(status(store.execute(CompleteUpload("m", upload_id, (only,)))), PutStatus.LOST)
        expect_equal(expect_object(store.execute(Get("m"))).data, b"here first")
        expect_equal(store.execute(AbortUpload("m", upload_id)), None)

    def test_aborted_upload_leaves_nothing(self) -> None:
        store = self.store()
        upload_id = started(store.execute(StartUpload("m")))
        only = part(store.execute(UploadPart("m", upload_id, 1, BytesSource(b"x"), 0, 1)))
        expect_equal(store.execute(AbortUpload("m", upload_id)), None)
        expect_equal(store.execute(AbortUpload("m", upload_id)), None)
        expect_equal(status(store.execute(CompleteUpload("m", upload_id, (only,)))), PutStatus.UNKNOWN)
        expect_equal(store.execute(Get("m")), Missing())
        try:
            store.execute(UploadPart("m", upload_id, 2, BytesSource(b"x"), 0, 1))
        except NotFoundError:
            return
        except RemoteUnavailableError:
            true(not self.tells_unknown_uploads, "an upload that is not known is not an outage")
            return
        raise AssertionError("a part of an aborted upload was taken")

    def test_unfinished_uploads_are_listed(self) -> None:
        store = self.store()
        keys = ["a/1.log", "a/1.log", "a/2.log", "ab", "b/3.log"]
        begun = sorted((key, started(store.execute(StartUpload(key)))) for key in keys)
        part(store.execute(UploadPart(*begun[0], 1, BytesSource(b"x"), 0, 1)))
        landed(store.execute(Put("a/4.log", b"whole", ABSENT)))
        expect_equal(unfinished(store, "a/1.log"), [each for each in begun if each[0] == "a/1.log"])
        expect_equal(unfinished(store, "a/"), [each for each in begun if each[0].startswith("a/")])
        expect_equal(unfinished(store, ""), begun)
        expect_equal(unfinished(store, "c"), [])
        expect_equal(store.execute(AbortUpload(*begun[0])), None)
        only = part(store.execute(UploadPart(*begun[4], 1, BytesSource(b"x"), 0, 1)))
        landed(store.execute(CompleteUpload(*begun[4], (only,))))
        expect_equal(unfinished(store, ""), begun[1:4])
        expect_equal(unfinished(self.another(store), "a/2"), begun[2:3])
        for key, upload_id in begun[1:4]:
            expect_equal(store.execute(AbortUpload(key, upload_id)), None)

    def test_small_parts(self) -> None:
        store = self.store()
        body = BytesSource(b"0123456789")
        upload_id = started(store.execute(StartUpload("m")))
        parts = tuple(
            part(store.execute(UploadPart("m", upload_id, n, body, start, start + 5))) for n, start in ((1, 0), (2, 5))
        )
        try:
            result = status(store.execute(CompleteUpload("m", upload_id, parts)))
        except Exception as error:  # noqa: BLE001 - which of our errors differs by store
            true(self.refuses_small_parts, f"refused: {error}")
            expect_equal(store.execute(Get("m")), Missing())
        else:
            expect_equal((result, self.refuses_small_parts), (PutStatus.LANDED, False))

    # --- steps on the store ---

    def test_probe_finds_what_the_flags_say_and_leaves_nothing(self) -> None:
        store = self.store()
        capabilities = drive(store, probe())
        expect_equal(
            (
                capabilities.conditional_writes,
                capabilities.ranges,
                capabilities.returns_crc32c,
                capabilities.verifies_crc32c,
            ),
            (True, True, self.returns_checksum, self.verifies_checksum),
        )
        expect_equal(listed(store), [])

    def test_unique_put_upload_and_verification(self) -> None:
        store = self.store()
        capabilities = drive(store, probe())
        body = os.urandom(MIN_PART_BYTES + 5)
        crc = crc32c(body)
        expect_equal(drive(store, put_unique("one", body, crc)).status, PutStatus.LANDED)
        expect_equal(drive(store, put_unique("one", body, crc)).status, PutStatus.LANDED)
        result = drive(store, upload_multipart("many", BytesSource(body), part_bytes=MIN_PART_BYTES))
        expect_equal(result.status, PutStatus.LANDED)
        for key in ("one", "many"):
            expect_equal(drive(store, verify_stored(key, len(body), crc, capabilities)).size, len(body))
            for size, wrong in ((len(body) - 1, crc), (len(body), crc ^ 1)):
                try:
                    drive(store, verify_stored(key, size, wrong, capabilities))
                except CorruptionError:
                    continue
                raise AssertionError("another size or another checksum was believed")
