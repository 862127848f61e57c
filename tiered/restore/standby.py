"""Standby: a log directory that keeps pulling what its bucket gets, and that can be promoted to the writer.

==========================  ===========================================  ==========================================
step                        a kill after it leaves                       the next start
==========================  ===========================================  ==========================================
mark the directory          an empty directory that follows              pulls
end deletions of topics     topics that left, their folders named        removes these folders
note the topics             topics without folders: no records           pulls
fetch a segment             ``.cleaned`` files                           deletes them, fetches again
exchange segments           ``.swap`` files: old ones or new ones        ends the exchange or takes it back
write the seal note         a segment without a note, if before it       fetches that segment again
drop old segments           ``.deleted`` files                           deletes them
note ends and starts        segments beyond the noted ends               finds nothing to fetch, notes the ends
claim (promotion)           some partitions claimed, the mark            claims these again by their own proof
commit positions of groups  positions of some groups, the mark           commits all of them again
remove the mark             a log like any other                         opens it for writing
==========================  ===========================================  ==========================================

Until the mark is removed the directory is read-only, and each row may be repeated. A pull reads each root by a
conditional GET. A partition that cannot be pulled does not delay the others. An absent registry entry is never taken
for a deletion: only an entry that says so, or one of another topic of the name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from tiered.check.findings import Passed
from tiered.clock import Clock, IdSource
from tiered.config import LogConfig
from tiered.engine.tiering import Tiering
from tiered.errors import ConfigError, CorruptionError, FencedError, LogDestroyedError, TieredError
from tiered.format.coordinator_records import is_state_log
from tiered.format.local_names import partition_dir
from tiered.format.root import STATE_DELETING
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import DirectoryView
from tiered.local.directory.registry import remove_tree
from tiered.local.disk.claims import Claims
from tiered.local.disk.directory_files import (
    LOG_START_NAME,
    RECOVERY_POINT_NAME,
    STANDBY_NAME,
    OffsetsFile,
    StandbyMark,
    end_standby,
    ensure_volume,
    read_standby,
    write_standby,
)
from tiered.local.disk.files import Files, sweep_temporaries
from tiered.local.disk.lock import LOCK_NAME, UPLOADER_LOCK_NAME, DirectoryLock, LockTerms
from tiered.local.disk.topics import TopicInfo, read_leaving, read_topics, write_topics
from tiered.local.disk.uploader_files import UploadCheckpoint, root_bounds_of, uploader_lock
from tiered.model import Position, TopicPartition
from tiered.plan.ownership import SPARK_VOLUME
from tiered.plan.pull import Pull
from tiered.remote.catalog_view import CatalogView
from tiered.remote.positions import load_positions
from tiered.remote.root_history import require_newest_root
from tiered.remote.root_view import RootView
from tiered.remote.roots import ROOTS_TOGETHER
from tiered.remote.topics import STATE_DELETED, TopicEntry, list_topics, load_entry
from tiered.restore.plan import PartitionRestore, choose_rows
from tiered.restore.pull import PartitionPull, add_positions, need_space, topic_infos, write_checkpoints
from tiered.store.base import Blocking, Emit, Steps, Store, Together
from tiered.store.driver import Runner, Taker
from tiered.store.location import StoreLocation
from tiered.store.steps import blocking

ALONE = (CorruptionError, LogDestroyedError)
"""Errors of one partition or topic, which do not stop the pull of the others."""


class PullReport(NamedTuple):
    """Result of one pull: number and size of the fetched segments. ``dropped``: topics that were deleted.

    ``notes``: texts about rebuilt indexes. ``errors``: one for each topic or partition that could not be pulled.
    """

    segments: int = 0
    size_bytes: int = 0
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[TieredError, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return True if the pull changed nothing and reported nothing."""
        return not (self.segments or self.dropped or self.notes or self.errors)


@dataclass(frozen=True, slots=True)
class _Due:
    """A partition whose root changed, and the changes of its directory."""

    pull: PartitionPull
    todo: Pull


class Standby:
    """Log directory that follows the bucket at ``url``. A context manager, which locks the directory.

    Entering it raises LockedError if another process uses the directory, ConfigError if that is no standby of ``url``.
    """

    def __init__(self, url: str, directory: Path, *, clock: Clock, ids: IdSource, files: Files) -> None:
        self.directory = directory.absolute()
        self._url = url
        self._clock, self._ids, self._files = clock, ids, files
        self._held = contextlib.ExitStack()
        self._is_new = False
        self._views: dict[TopicPartition, RootView] = {}
        self._pulled: dict[TopicPartition, CatalogView] = {}
        self._leaving: list[Path] = []

    def __enter__(self) -> Self:
        """Lock the directory, and mark it if it is new."""
        files, directory = self._files, self.directory
        if self._url.startswith("file://"):
            StoreLocation.parse(self._url, environ={}).refuse_overlap(directory)
        self._need_follower()
        self._is_new = files.state(directory) is None
        files.make_directory(directory)
        with contextlib.ExitStack() as held:
            for lock in (DirectoryLock(directory, files), uploader_lock(directory, files)):
                lock.acquire(self._clock)
                held.callback(lock.release)
            self._need_follower()  # another process may have made it a log meanwhile
            sweep_temporaries(files, directory)
            if read_standby(directory, files) is None:
                write_standby(directory, files, StandbyMark(self._url))
                files.sync_directory(directory.parent)
            ensure_volume(directory, files, self._ids, LogConfig())
            self._held = held.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Unlock the directory. Remove a new one, if an error of the library came before the first partition."""
        with self._held:
            is_refused = kind is not None and issubclass(kind, TieredError)
            if is_refused and self._is_new and not DirectoryView.read(self.directory, self._files).partitions:
                remove_tree(self._files, self.directory)

    @property
    def claimable(self) -> list[TopicPartition]:
        """Return the pulled partitions that a promotion claims: all except those of Spark sinks."""
        return sorted(tp for tp, seen in self._pulled.items() if seen.root.writer.volume != SPARK_VOLUME)

    def _need_follower(self) -> None:
        files, directory = self._files, self.directory
        mark = read_standby(directory, files)
        if mark is not None and mark.remote != self._url:
            raise ConfigError(
                f"{directory} follows {mark.remote}, not {self._url}",
                hint=f"pass --remote {mark.remote}, or name a new directory",
            )
        names = files.names(directory) if files.state(directory) is not None else []
        # A kill may have left both locks, and a mark that has not got its name.
        others = [name for name in names if name not in (LOCK_NAME, UPLOADER_LOCK_NAME) and STANDBY_NAME not in name]
        if mark is None and others:
            raise ConfigError(
                f"{directory} cannot follow a bucket: it is not a standby, or was promoted",
                hint="name a new directory; open a promoted one with tiered.open",
            )

    # ------------------------------------------------------------------ one pull

    def pull(self) -> Steps[PullReport]:
        """Bring the directory to the state of the bucket. Emits progress. A repetition changes nothing.

        Damage of a topic or partition goes into ``errors`` of the report. Raises RemoteUnavailableError,
        RemotePermissionError, LocalIOError, DiskFullError; what was pulled by then stays.
        """
        yield Blocking(self._sweep)
        errors: list[TieredError] = []
        unreadable: dict[str, TieredError] = {}
        entries = yield from list_topics(unreadable)
        errors += unreadable.values()
        entries = [entry for entry in entries if entry.state != STATE_DELETING]
        dropped = yield from self._deleted({entry.name: entry for entry in entries}, unreadable, errors)
        yield Blocking(partial(self._note_topics, entries, dropped))
        due: list[_Due] = []
        for plan in (yield from self._changed(entries, errors)):
            pull = PartitionPull(self._files, self.directory / partition_dir(plan.tp), plan, published=True)
            due.append(_Due(pull, (yield from pull.decide())))
        size = sum(each.todo.size_bytes for each in due)
        yield Blocking(partial(need_space, self.directory, size, self._files))
        yield Emit(Passed(0, "", size))
        done: list[PartitionRestore] = []
        segments, size, notes = 0, 0, list[str]()
        try:
            for each in due:
                try:
                    yield from each.pull.run(each.todo)
                except ALONE as error:
                    errors.append(error)
                    continue
                finally:
                    self._leaving += each.pull.leaving
                    notes += each.pull.notes
                done.append(each.pull.plan)
                segments += sum(len(exchange.new) for exchange in each.todo.exchanges)
                size += each.todo.size_bytes
        finally:
            self._note_ends(done)  # also of a pull that an outage ended: readers see what is there
        if not errors:
            mark = StandbyMark(self._url, self._clock.now_ms())
            yield Blocking(partial(write_standby, self.directory, self._files, mark))
        return PullReport(segments, size, tuple(dropped), tuple(notes), tuple(errors))

    def _sweep(self) -> None:
        """Unlink the files that readers of the last pull may have used, and the folders of deleted topics."""
        self._files.unlink(*self._leaving)
        self._leaving.clear()
        self._remove(read_leaving(self.directory, self._files))

    def _deleted(
        self, entries: Mapping[str, TopicEntry], unreadable: Mapping[str, object], errors: list[TieredError]
    ) -> Steps[list[str]]:
        """Return the topics on this disk that were deleted in the bucket. ``entries``: its topics by name.

        A topic without any entry may be lost, not deleted: its error is added to ``errors``. ``unreadable``: topics
        with damaged entries, by name, which are skipped.
        """
        found: list[str] = []
        for info in (yield from blocking(partial(read_topics, self.directory, self._files))).values():
            entry = entries.get(info.name)
            if is_state_log(info.name):  # of a promotion that did not end; the bucket has none
                continue
            if info.name in unreadable or (entry is not None and entry.topic_id == info.topic_id):
                continue
            last = entry or (yield from load_entry(info.name))
            # mutant lost-entry-is-no-deletion
            if last is None:
                text = f"topic {info.name} has no registry entry in {self._url}, not even one of a deleted topic"
                hint = f"correct the bucket's URL; if the entry was lost, run `tiered repair {info.name} --dry-run`"
                errors.append(LogDestroyedError(text, hint=hint))
            elif last.topic_id != info.topic_id or last.state in (STATE_DELETING, STATE_DELETED):
                found.append(info.name)
        return found

    def _note_topics(self, entries: Sequence[TopicEntry], dropped: Sequence[str]) -> None:
        """Remove deleted topics: their checkpoint entries first, their folders last.

        Then write ``tiered-topics.json`` for the topics of the bucket. ``dropped``: names of the deleted topics.
        """
        files, directory = self._files, self.directory
        known = read_topics(directory, files)
        if dropped:
            gone = {tp for tp in DirectoryView.read(directory, files).partitions if tp.topic in dropped}
            for name in (RECOVERY_POINT_NAME, LOG_START_NAME):
                offsets = OffsetsFile(directory, name, files)
                offsets.write({tp: at for tp, at in offsets.read().items() if tp not in gone})
            Claims(directory, files).forget(gone)
            UploadCheckpoint(directory, files).forget(gone)
            for tp in gone:
                self._views.pop(tp, None)
                self._pulled.pop(tp, None)
            known = {name: info for name, info in known.items() if name not in dropped}
            write_topics(directory, files, known, leaving=dropped)
            self._remove(dropped)
        now: dict[str, TopicInfo] = {**known, **topic_infos(entries)}
        if now != known or dropped:
            write_topics(directory, files, now)

    def _remove(self, topics: Iterable[str]) -> None:
        for tp, path in DirectoryView.read(self.directory, self._files).partitions.items() if topics else ():
            if tp.topic in topics:
                remove_tree(self._files, path)

    def _changed(self, entries: Sequence[TopicEntry], errors: list[TieredError]) -> Steps[list[PartitionRestore]]:
        """Return a plan for each partition whose root has changed since its last pull.

        Errors of single partitions are added to ``errors``.
        """
        asked = [(entry, TopicPartition(entry.name, number)) for entry in entries for number in range(entry.partitions)]
        yield Blocking(partial(self._make_views, asked))
        plans: list[PartitionRestore] = []
        for at in range(0, len(asked), ROOTS_TOGETHER):
            group = asked[at : at + ROOTS_TOGETHER]
            answers = yield Together(tuple(self._views[tp].request() for _, tp in group))
            for (entry, tp), got in zip(group, answers, strict=True):
                view, is_new = self._views[tp], self._views[tp].root is None
                try:
                    pinned = view.pin_received(got)
                    if is_new:
                        yield from require_newest_root(view, must_list=False)
                        pinned = yield from view.pin()
                    if pinned is None or pinned is self._pulled.get(tp):
                        continue
                    plans.append(PartitionRestore(tp, entry, entry, pinned, (yield from choose_rows(pinned))))
                except ALONE as error:
                    errors.append(error)
        return plans

    def _make_views(self, asked: Sequence[tuple[TopicEntry, TopicPartition]]) -> None:
        """Create the missing readers of roots. Each refuses a root older than one that this disk has seen."""
        uploads = UploadCheckpoint(self.directory, self._files).read()
        proofs = Claims(self.directory, self._files).read()
        for entry, tp in asked:
            if tp not in self._views:
                known = root_bounds_of(uploads.get(tp), proofs.get(tp), made=True)
                self._views[tp] = RootView(entry.topic_id, tp.partition, tp.topic, known)

    def positions(self, notes: list[str]) -> Steps[dict[str, dict[TopicPartition, Position]]]:
        """Return the group positions that the primary stored in the bucket, by group. ``notes`` gets a text for each
        unreadable copy.
        """
        found: dict[str, dict[TopicPartition, Position]] = {}
        pulled = [(tp, self._pulled[tp]) for tp in self.claimable]
        copies = yield from load_positions([(self._views[tp].topic_id, tp.partition) for tp, _ in pulled])
        for (tp, seen), copy in zip(pulled, copies, strict=True):
            notes += add_positions(found, tp, copy, seen.start_offset, seen.next_offset)
        return found

    def _note_ends(self, done: Sequence[PartitionRestore]) -> None:
        if not done:
            return
        write_checkpoints(self.directory, self._files, done, apart=False)
        for plan in done:
            if plan.pinned is not None:
                self._pulled[plan.tp] = plan.pinned


class Promotion(NamedTuple):
    """Result of a promotion. ``ends``: end offset by partition. ``notes``: texts about unreadable group positions."""

    ends: Mapping[TopicPartition, int]
    notes: Sequence[str]


def promote(store: Store, directory: Path, *, clock: Clock, ids: IdSource, files: Files, take: Taker) -> Promotion:
    """Pull once more, claim all partitions but those of Spark sinks, commit the positions of groups, end the standby.

    ``take``: called with progress. Raises ConfigError if ``directory`` is no standby, the errors of the pull, and
    FencedError if the primary committed in between. The directory is then still a standby; repeat the call.
    """
    if read_standby(directory, files) is None:
        raise ConfigError(
            f"{directory} is not a standby: it follows no bucket", hint="if it was promoted, open it with tiered.open"
        )
    with Standby(store.url, directory, clock=clock, ids=ids, files=files) as standby:
        report = Runner(store, clock, ids).run(standby.pull(), take)
    if report.errors:
        raise report.errors[0]
    terms = LockTerms(standby=True)
    with LocalLog.open(
        directory, clock=clock, ids=ids, files=files, config=LogConfig(remote=True), terms=terms
    ) as local:
        tiering = Tiering(local, store, clock=clock, ids=ids)
        try:
            tiering.claim(standby.claimable)
            notes: list[str] = []
            for group, positions in tiering.asked(standby.positions(notes)).items():
                local.transactions.positions.commit(group, positions)
        except FencedError as error:
            error.hint = f"stop the primary, which still wrote, and promote again; {directory} still follows the bucket"
            raise
        finally:
            tiering.close()
        end_standby(directory, files)
        return Promotion({tp: local.partition(tp).positions().end_offset for tp in standby.claimable}, notes)
