"""A simulated bucket and processes that fight over one partition. Everything follows from the seed.

One step is one request of one process. Schedules are bursty, so that processes stall for long; requests are applied
and answered, applied with the answer lost, delayed until later, dropped, or refused with 409 or 503; processes crash
and start again with their disk, sometimes with an older snapshot of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from tiered.errors import (
    CommitUnknown,
    FencedError,
    NotFoundError,
    OffsetGapError,
    OffsetOutOfRangeError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.keys import FLAG_MAINTAINER, join_uid, parse_hist_key, root_key, split_uid
from tiered.format.page import PageKind, Pointer, Pointers, verified_page
from tiered.format.root import Root, decode_root
from tiered.format.rows import Rows
from tiered.model import Row
from tiered.plan.commit import Shape
from tiered.plan.invariants import check_root
from tiered.plan.lifecycle import VolumeProof
from tiered.plan.rewrite import ReplaceIntent, TrimIntent
from tiered.remote.catalog import Catalog, CommitLimits
from tiered.remote.fence import Claim
from tiered.store.base import (
    Absent,
    Backoff,
    Blocking,
    Delete,
    Deleted,
    Get,
    List,
    ListEntry,
    Match,
    Missing,
    NewId,
    NotModified,
    Now,
    Object,
    Page,
    Put,
    PutResult,
    PutStatus,
    Steps,
    Time,
    Together,
)
from tiered.testing.clock import SeededIds

TOPIC_ID = UUID(int=77)
LIMITS = CommitLimits(deadline_ms=15_000)
PAGED = CommitLimits(
    deadline_ms=15_000,
    shape=Shape(leaf_rows=2, tail_rows=3, fan_out=2, root_leaves=3, small_leaf=2, trash_entries=6, trash_page=3),
)
BACKOFF_SECONDS = 3.0


class Violated(AssertionError):
    """An invariant of the log does not hold."""


@dataclass
class Disk:
    """A volume: what survives a crash. ``segments`` are (base, next, content) of its local log."""

    volume_id: str
    token: str = ""
    last_append: str = ""
    start: int = 0
    segments: list[tuple[int, int, str]] = field(default_factory=list)
    copied: bool = False
    snapshot: Disk | None = None

    @property
    def end(self) -> int:
        return self.segments[-1][1] if self.segments else self.start

    def persist(self, token: str | None, last_append: str | None) -> None:
        self.token = self.token if token is None else token
        self.last_append = self.last_append if last_append is None else last_append

    def proof(self) -> VolumeProof:
        return VolumeProof(self.volume_id, not self.segments, self.end, self.token, self.last_append)

    def clone(self) -> Disk:
        return Disk(self.volume_id, self.token, self.last_append, self.start, list(self.segments), copied=True)


class Bucket:
    """The object store, with a fault for every third request or so."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.etags = 0
        self.in_flight: list[Put] = []
        self.changed = False

    def execute(self, request: Get | Put) -> Any:
        roll = self.rng.random()
        if isinstance(request, Get):
            if roll < 0.04:
                raise RemoteUnavailableError("503")
            found = self.objects.get(request.key)
            if found is None:
                return Missing()
            return NotModified() if request.if_none_match == found[1] else Object(found[0], found[1], len(found[0]))
        if roll < 0.72:
            return self.apply(request)
        if roll < 0.82:
            self.apply(request)
        elif roll < 0.91:
            self.in_flight.append(request)
        elif roll < 0.95:
            return PutResult(PutStatus.CONFLICT)
        return PutResult(PutStatus.UNKNOWN, cause="timeout")

    def copy(self, request: Put | List | Delete) -> Any:
        """What has to do with copies of roots: no protocol rests on it, so that it is always carried out."""
        if isinstance(request, Put):
            return self.apply(request)
        if isinstance(request, Delete):
            for key in request.keys:
                assert parse_hist_key(key) is not None, f"{key} was deleted"
                self.objects.pop(key, None)
            return Deleted()
        keys = sorted(key for key in self.objects if key.startswith(request.prefix) and key > request.start_after)
        entries = [ListEntry(key, len(self.objects[key][0]), self.objects[key][1], 0) for key in keys]
        return Page(tuple(entries[: request.limit]), len(keys) > request.limit)

    def apply(self, put: Put) -> PutResult:
        found = self.objects.get(put.key)
        match put.condition:
            case Absent():
                if found is not None:
                    return PutResult(PutStatus.LOST)
            case Match(etag):
                if found is None:
                    return PutResult(PutStatus.ABSENT)
                if found[1] != etag:
                    return PutResult(PutStatus.LOST)
        self.etags += 1
        assert isinstance(put.body, bytes)
        self.objects[put.key] = (put.body, f'"{self.etags}"')
        self.changed = True
        return PutResult(PutStatus.LANDED, f'"{self.etags}"')

    def deliver_one(self) -> None:
        """A delayed request arrives, or is lost for good."""
        if self.in_flight:
            put = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
            if self.rng.random() < 0.85:
                self.apply(put)


@dataclass(frozen=True)
class Variant:
    """How processes behave; the default is the product. ``late_proof``: the proof is kept after the CAS.

    ``paged``: pages of two rows, and maintainers that replace rows, too.
    """

    make: Callable[..., Catalog] = Catalog
    forged_proof: bool = False
    late_proof: bool = False
    paged: bool = False

    @property
    def limits(self) -> CommitLimits:
        return PAGED if self.paged else LIMITS


class World:
    """The bucket, the processes and what they were told."""

    def __init__(self, seed: int, variant: Variant) -> None:
        self.rng, self.ids, self.variant = random.Random(seed), SeededIds(seed), variant
        self.writers = 1 if seed % 3 == 0 else 2  # alone, a writer meets older snapshots of itself more often
        self.bucket = Bucket(self.rng)
        self.monotonic, self.wall_ms = 0.0, 1_700_000_000_000
        self.volumes = 0
        self.root: Root | None = None
        self.acked: dict[str, Row] = {}
        self.failed: set[str] = set()
        self.ever: set[str] = set()
        self.content: dict[str, str] = {}
        self.counts = {"acked": 0, "failed": 0, "unknown": 0, "claims": 0, "refused": 0, "crashes": 0, "trims": 0}
        self.counts |= {"replaced": 0, "gone": 0, "inner": 0}

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        disks = [self.new_disk() for _ in range(self.writers)]
        makers: list[Callable[[], Steps[None]]] = [partial(writer_life, self, disks, i) for i in range(self.writers)]
        makers.append(partial(maintainer_life, self))
        running = [make() for make in makers]
        answers: list[Any] = [None] * len(makers)
        turn = 0
        for _ in range(steps):
            if self.rng.random() > 0.8:
                turn = self.rng.randrange(len(makers))
            if self.rng.random() < 0.02:
                running[turn].close()
                running[turn], answers[turn] = makers[turn](), None
                self.counts["crashes"] += 1
                if turn < self.writers:
                    self._crash_disk(disks, turn)
            answers[turn] = self._step(running[turn], answers[turn])
            if self.rng.random() < 0.12:
                self.bucket.deliver_one()
            self._look()
        while self.bucket.in_flight:
            self.bucket.deliver_one()
            self._look()
        for process in running:
            process.close()

    def _step(self, process: Steps[None], answer: Any) -> Any:
        request = process.throw(answer) if isinstance(answer, TieredError) else process.send(answer)
        while isinstance(request, List | Delete) or (isinstance(request, Put) and parse_hist_key(request.key)):
            request = process.send(self.bucket.copy(request))
        match request:
            case Backoff():
                self.monotonic += BACKOFF_SECONDS
                return None
            case Now():
                self.wall_ms += self.rng.randrange(-500, 1000)
                return Time(self.wall_ms, self.monotonic)
            case NewId():
                return self.ids.uid()
            case Blocking(call):
                call()
                return None
            case Get() | Put():
                try:
                    return self.bucket.execute(request)
                except TieredError as error:
                    return error
            case Together(requests):
                try:
                    return tuple([self.bucket.execute(one) for one in requests if isinstance(one, Get)])
                except TieredError as error:
                    return error
        raise AssertionError(request)

    def _crash_disk(self, disks: list[Disk], index: int) -> None:
        disk = disks[index]
        if disk.snapshot is not None and self.rng.random() < 0.5:
            disks[index] = disk.snapshot
            disks[index].snapshot = None
        elif self.rng.random() < 0.5:
            disk.snapshot = disk.clone()

    def new_disk(self) -> Disk:
        self.volumes += 1
        return Disk(f"v{self.volumes}")

    # -- checking --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self.bucket.changed:
            return
        self.bucket.changed = False
        key = root_key(TOPIC_ID, 0)
        if key not in self.bucket.objects:
            return
        body, _ = self.bucket.objects[key]
        root = decode_root(body, key=key)
        violations = check_root(root, self.root)
        if violations:
            raise Violated("; ".join(map(str, violations)))
        self.root = root
        rows = self.rows(root)
        if rows and (rows[-1].next != root.next_offset or not rows[0].base <= root.start_offset < rows[0].next):
            raise Violated(f"{rows[0].base}..{rows[-1].next} in a log of {root.start_offset}..{root.next_offset}")
        if Rows.from_rows(rows).tally != root.added - root.removed:
            raise Violated("rows do not add up")
        present = {join_uid(row.id_hi, row.id_lo): row for row in rows}
        self.ever |= set(present)
        for uid, row in self.acked.items():
            if uid not in present and row.next > root.start_offset and not self._covered(row, rows):
                raise Violated(f"acknowledged {row} is missing")
        self._check_failed()

    def rows(self, root: Root) -> list[Row]:
        """All that lives, from the pages that are in the bucket now: every one that is named must be there."""
        pointers: list[Pointer] = []
        for top in root.inner:
            self.counts["inner"] += 1
            held = self._page(root, top, PageKind.INNER)
            assert isinstance(held, Pointers)
            pointers += held
        found: list[Row] = []
        for pointer in [*pointers, *root.leaves]:
            rows = self._page(root, pointer, PageKind.LEAF)
            assert isinstance(rows, Rows)
            found += rows
        return [row for row in [*found, *root.rows] if row.next > root.start_offset]

    def _page(self, root: Root, pointer: Pointer, kind: PageKind) -> Rows | Pointers:
        key = root.page_key(pointer)
        if key not in self.bucket.objects:
            raise Violated(f"page {key} is named and not there")
        return verified_page(self.bucket.objects[key][0], pointer, key=key, kind=kind)

    def _covered(self, row: Row, rows: list[Row]) -> bool:
        """Whether rows of a maintainer stand where ``row`` stood."""
        over = [one for one in rows if one.base < row.next and row.base < one.next]
        return bool(over) and all(one.flags & FLAG_MAINTAINER for one in over)

    def _check_failed(self) -> None:
        if self.failed & self.ever:
            raise Violated(f"reported failed and visible: {self.failed & self.ever}")

    def report_acked(self, uid: str, row: Row) -> None:
        self.counts["acked"] += 1
        if uid not in self.ever:
            raise Violated(f"acknowledged and never committed: {row}")
        self.acked[uid] = row

    def report_failed(self, uid: str) -> None:
        self.counts["failed"] += 1
        self.failed.add(uid)
        self._check_failed()


class Writer:
    """A process with a local log: claims, appends segments, commits them, trims."""

    def __init__(self, world: World, disks: list[Disk], index: int) -> None:
        self.world, self.disks, self.index = world, disks, index
        self.claims = 0

    @property
    def disk(self) -> Disk:
        return self.disks[self.index]

    def life(self) -> Steps[None]:
        while True:
            disk = self.disk
            kept: list[tuple[str | None, str | None]] = []
            persist = partial(keep_later, kept) if self.world.variant.late_proof else disk.persist
            catalog = self.world.variant.make(TOPIC_ID, 0, "t", persist=persist, limits=self.world.variant.limits)
            try:
                yield from self._reign(catalog, disk, kept)
            except (CommitUnknown, RemoteUnavailableError):
                self.world.counts["unknown"] += 1

    def _reign(self, catalog: Catalog, disk: Disk, kept: list[tuple[str | None, str | None]]) -> Steps[None]:
        world = self.world
        try:
            proof = disk.proof()
            if world.variant.forged_proof and (root := (yield from catalog.load())) is not None:
                proof = forged(proof, root)
            claim = yield from catalog.claim("w", f"p{self.index}", proof)
        except FencedError:
            world.counts["refused"] += 1
            if world.root is not None and world.root.writer.volume == disk.volume_id and not disk.copied:
                raise Violated("the rightful owner is locked out") from None
            self.disks[self.index] = world.new_disk()
            return
        world.counts["claims"] += 1
        keep_all(disk, kept)
        self._granted(disk, claim)
        for _ in range(world.rng.randrange(1, 12)):
            if world.rng.random() < (0.05 if world.variant.paged else 0.15):
                yield from self._trim(catalog)
            elif not (yield from self._append(catalog, disk)):
                return
            keep_all(disk, kept)

    def _granted(self, disk: Disk, claim: Claim) -> None:
        """A granted volume's local log must be the catalog's, as far as both go."""
        if claim.resumes or not disk.segments:
            disk.segments, disk.start = [], claim.next_offset
            disk.copied = False
            return
        if disk.end < claim.next_offset:
            raise Violated(f"granted to a volume that ends at {disk.end}, the catalog at {claim.next_offset}")
        alive = self.world.rows(claim.root)
        rows = {row.base: row for row in alive}
        for base, end, content in disk.segments:
            row = rows.get(base)
            if self.world._covered(Row(base, end, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), alive):
                continue
            if base >= claim.next_offset or end <= claim.root.start_offset:
                continue
            if row is None or row.next != end or self.world.content[join_uid(row.id_hi, row.id_lo)] != content:
                raise Violated(f"volume {disk.volume_id} holds other records at {base} than the log")

    def _append(self, catalog: Catalog, disk: Disk) -> Steps[bool]:
        """One more local segment, then all that are not committed; False if fenced."""
        world = self.world
        end = disk.end
        disk.segments.append((end, end + world.rng.randrange(1, 10), world.ids.uid()))
        root = catalog.root
        assert root is not None
        rows, uids = [], []
        for base, next_offset, content in disk.segments:
            if base >= root.next_offset:
                uid = world.ids.uid()
                world.content[uid] = content
                high, low = split_uid(uid)
                rows.append(
                    Row(base, next_offset, 0, 0, 1, 0, high, low, 1, catalog.claim_epoch, 1, 0, root.leader_epoch)
                )
                uids.append(uid)
        try:
            yield from catalog.append(rows)
        except FencedError:
            for uid in uids:
                world.report_failed(uid)
            return False
        except OffsetGapError as error:
            raise Violated(str(error)) from error
        for uid, row in zip(uids, rows, strict=True):
            world.report_acked(uid, row)
        return True

    def _trim(self, catalog: Catalog) -> Steps[None]:
        assert catalog.root is not None
        yield from trim_some(self.world, catalog, catalog.root)


def forged(proof: VolumeProof, root: Root) -> VolumeProof:
    """What a catalog that knows volumes by their id alone would accept."""
    if root.writer.volume != proof.volume_id:
        return proof
    return VolumeProof(
        proof.volume_id,
        proof.empty,
        max(proof.end_offset, root.next_offset),
        root.writer.token,
        root.writer.last_append,
    )


def keep_later(kept: list[tuple[str | None, str | None]], token: str | None, last_append: str | None) -> None:
    kept.append((token, last_append))


def keep_all(disk: Disk, kept: list[tuple[str | None, str | None]]) -> None:
    for both in kept:
        disk.persist(*both)
    kept.clear()


def writer_life(world: World, disks: list[Disk], index: int) -> Steps[None]:
    """A writer on ``disks[index]``, from the start."""
    return Writer(world, disks, index).life()


def maintainer_life(world: World) -> Steps[None]:
    """Claims its role and trims, for ever."""
    while True:
        catalog = world.variant.make(TOPIC_ID, 0, "t", limits=world.variant.limits)
        try:
            claim = yield from catalog.claim("m", "gc")
            root: Root = claim.root
            for _ in range(world.rng.randrange(1, 10)):
                if world.variant.paged and world.rng.random() < 0.6:
                    yield from replace_some(world, catalog, root)
                else:
                    yield from trim_some(world, catalog, root)
                root = (yield from catalog.load()) or root
        except (CommitUnknown, RemoteUnavailableError, FencedError):
            world.counts["unknown"] += 1


def replace_some(world: World, catalog: Catalog, root: Root) -> Steps[None]:
    """One row for some neighbours, as they were in a root that may be old by now; then perhaps a trim with it."""
    if any(root.page_key(pointer) not in world.bucket.objects for pointer in [*root.inner, *root.leaves]):
        return
    rows = world.rows(root)
    if not rows:
        return
    at = world.rng.randrange(len(rows))
    old = tuple(rows[at : at + world.rng.randrange(1, 4)])
    uid = world.ids.uid()
    high, low = split_uid(uid)
    row = Row(old[0].base, old[-1].next, 0, 0, 1, 0, high, low, 1, catalog.claim_epoch, 1, FLAG_MAINTAINER, 0)
    row = row._replace(leader_epoch=old[-1].leader_epoch)
    trim = [TrimIntent(world.rng.randint(old[0].base, old[-1].next))] if world.rng.random() < 0.3 else []
    try:
        result, *_ = yield from catalog.commit_all([ReplaceIntent(old, (row,)), *trim])
    except FencedError:
        world.report_failed(uid)
        raise
    if isinstance(result, TieredError):
        world.counts["gone"] += 1
        world.report_failed(uid)
    else:
        world.counts["replaced"] += 1
        trimmed = world.root is not None and row.next <= world.root.start_offset  # perhaps by the same commit
        if uid not in world.ever and not trimmed:
            raise Violated(f"acknowledged and never committed: {row}")
        if world.rng.random() < 0.3:
            yield from replace_again(world, catalog, old, row)


def replace_again(world: World, catalog: Catalog, old: tuple[Row, ...], row: Row) -> Steps[None]:
    """What is gone cannot be replaced a second time."""
    high, low = split_uid(world.ids.uid())
    (again,) = yield from catalog.commit_all([ReplaceIntent(old, (row._replace(id_hi=high, id_lo=low),))])
    if not isinstance(again, NotFoundError):
        raise Violated(f"replaced twice: {old}")
    world.counts["gone"] += 1


def trim_some(world: World, catalog: Catalog, root: Root) -> Steps[None]:
    """Trims to somewhere in the log, or a little beyond it."""
    part = 16 if world.variant.paged else 4  # a log that stays long has inner pages
    end = (root.start_offset * (part - 1) + root.next_offset) // part
    end = root.next_offset + 1 if world.rng.random() < (0.05 if world.variant.paged else 0.2) else end
    try:
        yield from catalog.trim(world.rng.randint(root.start_offset, max(root.start_offset, end)))
        world.counts["trims"] += 1
    except OffsetOutOfRangeError:
        pass
    except FencedError:
        pass  # the next append finds out, too
