"""Periodic work of a log directory: its tasks, all from one call about once a second.

=========================  =============================  =========================================================
task                       every                          does
=========================  =============================  =========================================================
space                      tick                           asks for free space: appends stop at the reserve, and go on
uploads                    uploads_check_interval_ms      reads what the uploader noted, obeys its request to seal
waking                     tick                           opens some of the partitions that sleep and have timers
seal                       tick                           ``seal.ms`` of each partition
flush                      tick                           ``flush.ms`` of each partition
retention                  retention_check_interval_ms    retention rules of each partition
deletion                   tick                           files and directories whose ``file.delete.delay.ms`` is over
producer-expiry            producer_expiration_check_...  forgets producers that were idle for a day
cleaning (on workers)      cleaner_backoff_ms             compaction of what no bucket holds (``local.cleaning``)
positions                  tick                           leaves positions of groups to the uploader
transactions               tick                           aborts those open beyond their timeout, forgets unused ids
recovery-point-checkpoint  checkpoint_interval_ms         below which offsets a crash costs no reading
log-start-checkpoint       checkpoint_interval_ms         log starts that differ from the segments
=========================  =============================  =========================================================

Others are added by name: ``tasks.add(Task(name, period_ms, run))``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial

from tiered.format.coordinator_records import is_state_log
from tiered.local.cleaning.cleaner import LogCleaner
from tiered.local.directory.checkpoints import DirectoryNotes
from tiered.local.directory.registry import LeavingDirectories
from tiered.local.directory.tasks import EVERY_TICK, Task, TaskResult, Tasks, Workers, run_all
from tiered.local.disk.uploader_files import SealRequest
from tiered.local.partition.context import DirectoryContext
from tiered.local.partition.open_partitions import Roster
from tiered.local.partition.write_log import WriteLog
from tiered.model import TopicPartition


class BackgroundTasks:
    """The tasks of one directory."""

    def __init__(
        self,
        around: DirectoryContext,
        roster: Roster,
        *,
        leaving: LeavingDirectories,
        notes: DirectoryNotes,
        cleaner: LogCleaner,
        workers: Workers,
        note_status: Callable[[], None],
        sealing_many: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """``note_status`` writes the report on the tasks for other processes."""
        self._sealing_many = sealing_many
        self._cleaner = cleaner
        self._roster = roster
        self._uploads = around.uploads
        self.seal_requests = SealRequest(roster.directory, around.files)
        self._leaving = leaving
        config, reserve = around.config, around.reserve
        every = config.checkpoint_interval_ms
        self.tasks = Tasks(
            around.clock,
            around.ids,
            (
                Task("space", EVERY_TICK, lambda _: (reserve.check(), None)[1]),
                Task("uploads", config.uploads_check_interval_ms, self._check_uploads),
                Task("waking", EVERY_TICK, self._wake_some),
                Task("seal", EVERY_TICK, self._seal_idle),
                Task("flush", EVERY_TICK, self._each(lambda writer: writer.durability.flush_in_time)),
                Task(
                    "retention",
                    config.retention_check_interval_ms,
                    self._each(lambda writer: writer.maintenance.retain),
                ),
                Task("deletion", EVERY_TICK, self._delete),
                Task(
                    "producer-expiry",
                    config.producer_expiration_check_interval_ms,
                    self._each(lambda writer: writer.maintenance.expire_producers),
                ),
                Task("cleaning", config.cleaner_backoff_ms, self._clean, workers=config.cleaner_threads),
                Task("recovery-point-checkpoint", every, lambda _: self._write_points(notes, note_status)),
                Task("log-start-checkpoint", every, lambda _: TaskResult(partitions=notes.write_starts())),
            ),
            workers=workers,
            initial_ms=config.initial_task_delay_ms,
            failed=around.failed,
        )

    def _write_points(self, notes: DirectoryNotes, note_status: Callable[[], None]) -> TaskResult:
        written = notes.write_points()
        note_status()
        return TaskResult(partitions=written)

    def refresh_uploads(self) -> None:
        """Pass each partition its entry of ``tiered-offset-checkpoint``. One ``stat`` while it is unchanged."""
        known = self._uploads.read()
        if not known:
            return
        for writer in self._roster.awake():
            upload = known.get(writer.tp)
            if upload is not None and writer.upload != upload:
                writer.set_uploaded(upload.end_offset, upload.claim_epoch, upload.fenced, upload.start_offset)

    def _each(self, timer: Callable[[WriteLog], Callable[[int], int | None]]) -> Callable[[int], TaskResult]:
        """Return a task that calls one timer of each open partition. A failed partition does not stop the others."""

        def run(now_ms: int) -> TaskResult:
            return run_all(partial(timer(writer), now_ms) for writer in self._roster.awake())

        return run

    def _seal_idle(self, now_ms: int) -> TaskResult:
        with self._sealing_many():
            return self._each(lambda writer: writer.maintenance.seal_idle)(now_ms)

    def _wake_some(self, _: int) -> TaskResult:
        return run_all(partial(self._wake, tp) for tp in self._roster.next_to_wake())

    def _wake(self, tp: TopicPartition) -> int | None:
        return None if self._roster.find(tp) is None else 0

    def _check_uploads(self, _: int) -> TaskResult:
        done = run_all((self.refresh_uploads,))
        done.add(self._obey_seal_request())
        return done

    def _obey_seal_request(self) -> TaskResult:
        request = self.seal_requests.pending()
        if request is None:
            return TaskResult()
        request_id, wanted = request
        broken = self._roster.broken  # reported at the open
        names = [tp for tp in self._roster.names() if _is_wanted(tp, wanted) and tp not in broken]
        with self._sealing_many():
            done = run_all(partial(self._roll, tp) for tp in names)  # a requester that still waits asks again
        self.seal_requests.answer(request_id)
        return done

    def _roll(self, tp: TopicPartition) -> int | None:
        try:
            writer = self._roster.logs[tp]
        except KeyError:  # its topic was deleted meanwhile
            return None
        return 0 if writer.maintenance.roll() else None

    def _delete(self, now_ms: int) -> TaskResult:
        files = (partial(writer.maintenance.empty_trash, now_ms) for writer in self._roster.awake())
        return run_all((*files, partial(self._leaving.remove_due, now_ms)))

    def _clean(self, now_ms: int) -> TaskResult:
        made = self._cleaner.run(now_ms)
        return TaskResult(made.rounds, made.bytes, made.failed, made.error)


def _is_wanted(tp: TopicPartition, wanted: Collection[TopicPartition] | None) -> bool:
    """Return True if a request to seal names ``tp``. ``wanted`` None names every partition that may be uploaded."""
    return not is_state_log(tp.topic) if wanted is None else tp in wanted
