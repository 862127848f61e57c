"""Service of the uploader, for a daemon, a one-shot command or an application. It builds and connects all objects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.engine.bucket import Bucket
from tiered.engine.disk import LogDirectory
from tiered.engine.drain import Drain, DrainMode
from tiered.engine.journal import Journal
from tiered.engine.reports import Exit, Report
from tiered.engine.runner import UPLOAD_BYTES_PER_SECOND, DirectoryRun, Timing
from tiered.engine.status import PartitionView
from tiered.engine.wait import PROGRESS_SECONDS
from tiered.errors import (
    CorruptionError,
    DataLocalError,
    OffsetGapError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.local.directory.figures import read_report, report_metrics
from tiered.local.disk.uploader_files import PauseFile
from tiered.metrics import Metric, metric
from tiered.model import TopicPartition
from tiered.plan.pacing import ALL_TOPICS
from tiered.program.uploader_status import reasons_of, worst
from tiered.remote.committer import owner_of
from tiered.sidecar.directory import BrokerDirectory
from tiered.store.limit import Limits
from tiered.store.location import StoreLocation
from tiered.store.metrics import StoreMetrics
from tiered.store.options import DEFAULTS, StoreOptions
from uploader import health
from uploader.config import Settings
from uploader.health import HealthServer, Probes
from uploader.metrics import Metrics
from uploader.telemetry import Notify, Telemetry
from uploader.upkeep import GroupLags, MaintenanceThread

PROGRAM = "tiered-uploader"
RATE_SHARES = 4
"""Factor on the time that an upload needs with its share of a limited rate."""
CHECK_SECONDS = 5.0
"""Seconds in which a one-shot run checks that the bucket is that of its checkpoint."""


@dataclass(frozen=True, slots=True)
class ServicePlace:
    """Log directory and store of a service."""

    directory: Path
    store: StoreLocation


class Service:
    """One run of the uploader. :meth:`run` takes ``tiered-uploader.lock``. It returns exit status, reason and hint."""

    def __init__(
        self,
        place: ServicePlace,
        settings: Settings,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        notify: Notify | None = None,
        options: StoreOptions = DEFAULTS,
    ) -> None:
        """Make a service. ``notify``: connection to the service manager, None if the process does more than upload.

        ``options``: store options of the log in this process. Its limits replace those of the settings.
        """
        self.settings = settings
        self._place = place
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self._directory = self._directory_of(place, settings)
        self.store_metrics = StoreMetrics()
        # For uploads and maintenance together, and for the log if it has limits.
        self._limits = options.limits or Limits.from_config(settings.store_limits, clock=self._clock)
        self._options = replace(
            options,
            clock=self._clock,
            ids=self._ids,
            metrics=self.store_metrics,
            limits=self._limits,
            notice_outages=True,
        )
        self._group_lags = GroupLags(place.directory, self._clock)
        self._metrics = Metrics(
            self.store_metrics,
            self.views,
            by_partition=settings.partition_labels,
            writer=self._directory_metrics,
            maintenance=lambda: [] if self._maintenance is None else self._maintenance.metrics(),
            limits=self._limits.metrics,
            clock=self._clock,
        )
        self._maintenance: MaintenanceThread | None = None
        self._notify = notify or Notify("")
        self._telemetry = Telemetry(self._metrics, self._clock, notify=self._notify, each_tick=self._check)
        self._trouble = ""
        self._progress: Callable[[str], None] | None = None
        self._told_progress = 0.0
        self._bucket: Bucket | None = None
        self._runner: DirectoryRun | None = None
        self._server: HealthServer | None = None
        self.http_port = 0

    def _directory_of(self, place: ServicePlace, settings: Settings) -> LogDirectory:
        if settings.sidecar is None:
            return LogDirectory(place.directory, clock=self._clock, ids=self._ids)
        return BrokerDirectory(
            settings.sidecar,
            place.directory,
            clock=self._clock,
            ids=self._ids,
            compacted=settings.sidecar_compacted,
            held_bytes=settings.sidecar_held,
        )

    async def run(
        self,
        *,
        oneshot: DrainMode | None = None,
        timeout_ms: int | None = None,
        started: Callable[[], None] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Exit:
        """Run until an end is requested. Return exit status, reason and hint.

        ``oneshot``: end once the records of this mode are uploaded, or ``timeout_ms`` (None: no limit) have passed.
        ``started``: called once the lock is taken. ``progress`` gets a sentence every ``PROGRESS_SECONDS``. Raises
        NotFoundError (no log directory), LockedError (another uploader), ConfigError (address in use, unsuitable
        directory), and the error of the first scan. Raises LogDestroyedError if a one-shot run finds that the bucket
        lacks what this directory uploaded.
        """
        self._progress, self._told_progress = progress, self._clock.monotonic()
        self._directory.acquire()
        try:
            volume_id = self._directory.volume_id
            journal = Journal(self._place.directory, self._directory.files)
            try:
                return await self._run(journal, volume_id, oneshot, timeout_ms, started)
            finally:
                journal.close()
        finally:
            self._directory.release()

    async def _run(
        self,
        journal: Journal,
        volume_id: str,
        oneshot: DrainMode | None,
        timeout_ms: int | None,
        started: Callable[[], None] | None,
    ) -> Exit:
        settings = self.settings
        # A bucket that has records of this directory exists: a missing folder is a wrong URL, or is not mounted.
        store = self._place.store.open_aio(replace(self._options, create=not self._directory.uploads()))
        owner = owner_of(PROGRAM)
        bucket = Bucket(
            store,
            self._directory,
            journal,
            clock=self._clock,
            ids=self._ids,
            owner=owner,
            sizes=settings.sizes,
            memory=self._limits.memory,
        )
        runner = DirectoryRun(
            bucket,
            self._directory,
            clock=self._clock,
            ids=self._ids,
            limits=settings.limits,
            listener=self._telemetry,
            timing=self._timing(),
            lazy=oneshot is not None,
        )
        self._bucket, self._runner = bucket, runner
        try:
            if oneshot is None and settings.http is not None:
                await self._listen(*settings.http)
            if started is not None:
                started()
            text = f"uploading {self._place.directory} to {self._place.store}"
            self._notify.ready(text)
            fields = (("volume", volume_id), ("http_port", self.http_port))
            self._telemetry.report(Report(logging.INFO, "started", text, None, fields))
            if oneshot is None and settings.maintain:
                self._maintenance = self._maintain()
            if oneshot is not None:
                with contextlib.suppress(RemoteUnavailableError, TimeoutError):  # the run itself waits for the store
                    async with asyncio.timeout(CHECK_SECONDS):
                        await bucket.drive(bucket.steps.check_uploaded())
                deadline_ms = None if timeout_ms is None else runner.now_ms() + timeout_ms
                runner.drain(Drain(oneshot, deadline_ms, oneshot=True))
            ending = self._exit_with_unread(await runner.run())
            level = logging.INFO if ending.code == 0 else logging.WARNING
            self._telemetry.report(Report(level, "ended", str(ending), None, (("exit_code", ending.code),)))
            return ending
        finally:
            if not runner.is_draining:
                self._notify.stopping(0)
            if self._maintenance is not None:
                await self._maintenance.close()
            if self._server is not None:
                await self._server.close()
            await bucket.close()

    async def _listen(self, host: str, port: int) -> None:
        """Serve at an address. Raises ConfigError if it cannot be used."""
        server = HealthServer(self._probes(), host, port)
        await server.start()
        self._server, self.http_port = server, server.port
        self._directory.note_http(server.address)

    def _maintain(self) -> MaintenanceThread:
        """Start maintenance. Its store is separate, as the uploads' belongs to this event loop; limits are shared."""
        store = self._place.store.open(replace(self._options, notice_outages=False))
        pauses = PauseFile(self._directory.path, self._directory.files)  # its own: its memory is for one thread
        return MaintenanceThread(
            store,
            every_ms=self.settings.maintain_every,
            clock=self._clock,
            ids=self._ids,
            is_paused=lambda topic: bool(pauses.read().keys() & {topic, ALL_TOPICS}),
            memory=self._limits.memory,
        )

    def _exit_with_unread(self, ending: Exit) -> Exit:
        """Return ``ending``, or a failure if this disk may have records that no scan has read.

        This is so for unreadable partitions, a missing directory, or a failed last scan. An exit because of missing
        offsets gets the directory's own error for them, which says more.
        """
        if ending.code == 0 and (unseen := self._unseen()) is not None:
            code = unseen.exit_code if isinstance(unseen, CorruptionError) else DataLocalError.exit_code
            return Exit(code, f"the end of the log is not known: {unseen.message}", unseen.hint)
        broken = self._directory.unreadable()
        if not broken or ending.code not in (0, OffsetGapError.exit_code):
            return ending
        first = broken[min(broken)]
        if ending.code and not isinstance(first, OffsetGapError):
            return ending
        names = ", ".join(str(tp) for tp in sorted(broken))
        return Exit(first.exit_code, f"not all of {names} could be read: {first.message}", first.hint)

    def _unseen(self) -> TieredError | None:
        try:
            self._directory.check_place()
        except TieredError as gone:
            return gone
        return None if self._runner is None else self._runner.scan_failure

    # ------------------------------------------------------------------ while it runs, on its event loop

    def drain(self) -> None:
        """Request the end of the service, and return at once.

        The service first scans the disk. It then uploads the records that the setting ``drain`` selects, for at most
        ``drain_timeout``, and ends. The second call ends it at once. A signal handler calls this method.
        """
        if self._maintenance is not None:
            self._maintenance.end()
        runner, wait_ms = self._runner, self.settings.drain_timeout
        if runner is None:
            return
        if runner.is_draining:
            runner.drain(Drain(DrainMode.INFLIGHT, runner.now_ms(), last=True))
        else:
            self._notify.stopping(wait_ms)
            runner.drain(Drain(self.settings.drain, runner.now_ms() + wait_ms, last=True), scan=True)

    def finish(self, timeout_ms: int) -> None:
        """Finish and commit uploads in progress within ``timeout_ms``, then end. Other records stay on the disk."""
        runner = self._runner
        if runner is not None:
            until_ms = runner.now_ms() + (0 if runner.is_draining else timeout_ms)
            runner.drain(Drain(DrainMode.INFLIGHT, until_ms))

    def scan_now(self) -> None:
        """Scan the disk at once, and retry after failures that pass by themselves."""
        if self._runner is not None:
            self._runner.scan_now()

    def reload(self, settings: Settings) -> list[str]:
        """Apply changed settings. Return the names of those that need a restart; they stay unchanged."""
        before, stale = self.settings, self.settings.restart_needed(settings)
        kept: dict[str, Any] = {name: getattr(before, name) for name in stale}
        self.settings = new = replace(settings, **kept)
        self._limits.reconfigure(
            requests_per_second=new.requests_per_second,
            bytes_per_second=new.bytes_per_second,
            memory_bytes=new.memory,
        )
        if self._runner is not None and self._bucket is not None:
            self._runner.reconfigure(new.limits)
            self._runner.set_timing(self._timing())
            self._bucket.steps.sizes = new.sizes
        if self._maintenance is not None:
            self._maintenance.reconfigure(new.maintain_every)
        level = logging.WARNING if stale else logging.INFO
        text = "the settings are those of the file again" + (
            f"; a restart is needed for {', '.join(stale)}" if stale else ""
        )
        self._telemetry.report(Report(level, "reloaded", text))
        return stale

    def _timing(self) -> Timing:
        """Return the periods of scans and ticks, and the slowest rate at which an upload does not time out.

        With a limited rate an upload takes longer, because uploads share the rate.
        """
        slowest: float = UPLOAD_BYTES_PER_SECOND
        if self.settings.bytes_per_second is not None:
            slowest = min(slowest, self.settings.bytes_per_second / (RATE_SHARES * self.settings.uploads))
        return Timing(self.settings.scan, self._notify.tick_ms(), slowest)

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """Return the number of offsets that this run has committed, by partition."""
        return dict(self._telemetry.committed)

    def reload_from(self, read: Callable[[], Settings]) -> None:
        """Read settings and apply them. If they cannot be read, log the error and change nothing."""
        self._notify.reloading(self._clock.monotonic())
        try:
            stale = self.reload(read())
            text = f"reloaded; a restart is needed for {', '.join(stale)}" if stale else "reloaded"
        except TieredError as error:
            text = f"the settings are those of before: {error.message}"
            self._telemetry.report(Report(logging.ERROR, "reload_failed", str(error)))
        self._notify.ready(text)

    def views(self) -> list[PartitionView]:
        """Return the status of each partition."""
        return [] if self._runner is None else self._runner.views()

    def status(self) -> dict[str, Any]:
        """Return the JSON document of ``/status``."""
        now_ms = self._runner.now_ms() if self._runner is not None else self._clock.now_ms()
        unreadable = self._directory.unreadable()
        report = health.status_document(
            self.views(),
            now_ms=now_ms,
            remote=self._place.store.url,
            unreadable=unreadable,
            unread=None if self._runner is None else self._runner.scan_failure,
            pauses=self._directory.pauses(),
            lag_limit_ms=self.settings.lag_limit,
        )
        report["store"] = {**health.store_document(self._limits), "oldest_request": self._oldest_request()}
        if self._metrics.disk_free_bytes is not None:
            report["disk"] = {
                "free_bytes": self._metrics.disk_free_bytes,
                "used_percent": self._metrics.disk_used_percent,
                "warn_percent": self.settings.limits.disk_warn_percent,
            }
        return report if self._maintenance is None else {**report, "maintenance": self._maintenance.status()}

    def _oldest_request(self) -> dict[str, Any]:
        oldest, now = self.store_metrics.oldest(), self._clock.monotonic()
        return {
            "op": "" if oldest is None else oldest.op,
            "seconds": self.store_metrics.oldest_seconds(now),
            "overdue": self.store_metrics.overdue(now) is not None,
        }

    def _check(self) -> None:
        """Store the worst problem in the lock file, and pass a progress sentence to the caller when one is due.

        The run calls it once a second.
        """
        now = self._clock.monotonic()
        silent = self.store_metrics.overdue(now) is not None
        if silent or self._trouble or self._telemetry.has_warned:
            self._telemetry.has_warned = False
            reasons = reasons_of(self.status())
            trouble = json.dumps(worst(reasons).as_json()) if reasons else ""
            if trouble != self._trouble:
                self._trouble = trouble
                with contextlib.suppress(TieredError):  # a failing disk is reported by the next scan
                    self._directory.note_trouble(trouble)
        if self._progress is not None and now - self._told_progress >= PROGRESS_SECONDS:
            self._told_progress = now
            self._progress(health.progress_text(self.views()))

    def _directory_metrics(self) -> list[Metric]:
        """Return metrics: unreadable partitions, the writer's background tasks, and the lags of groups."""
        path, files = self._place.directory, self._directory.files
        where = {"log_dir": str(path)}
        broken = metric("directory_partitions_out_of_service", len(self._directory.unreadable()), where)
        try:
            noted = report_metrics(read_report(path, files), path, self._clock.now_ms())
            return [broken, *noted, *self._group_lags.metrics()]
        except TieredError:  # a disk that cannot be read has metrics of its own
            return [broken]

    def _probes(self) -> Probes:
        return Probes(
            beat_age_ms=self._beat_age_ms,
            not_ready=self._not_ready,
            metrics=self._metrics.render,
            status=self.status,
            paused=self._directory.pauses,
            before_metrics=self._group_lags.read if self.settings.sidecar is None else None,  # a broker has its own
        )

    def _beat_age_ms(self) -> int:
        return self._runner.beat_age_ms() if self._runner is not None else 0

    def _not_ready(self) -> list[str]:
        if self._runner is None or self._bucket is None:
            return ["starting"]
        missing = [] if self._runner.has_scanned else ["the log directory has not been read yet"]
        if (failure := self._runner.scan_failure) is not None:
            missing.append(f"the log directory cannot be read: {failure.message}")
        views = self.views()
        if views and self._bucket.steps.capabilities is None:
            missing.append("the store refuses, or has not answered yet")
        missing += [error.message for error in self._directory.unreadable().values()]
        for view in views:
            name = f"{view.tp}"
            if view.phase != "claimed":
                missing.append(f"{name} is not claimed: {view.waiting.reason if view.waiting else view.phase}")
            elif view.waiting is not None and view.waiting.code in ("retry", "permission"):
                missing.append(f"{name}: {view.waiting.reason}")
            if view.lag_ms > self.settings.lag_limit:
                missing.append(f"{name}: lag {view.lag_ms // 1000} s, the limit is {self.settings.lag_limit // 1000} s")
        if self._runner.is_draining:
            missing.append("draining")
        return missing


async def serve(
    service: Service,
    *,
    oneshot: DrainMode | None = None,
    timeout_ms: int | None = None,
    reload: Callable[[], Settings] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Exit:
    """Run a service. Return exit status, reason and hint. Raises the errors of :meth:`Service.run`.

    SIGTERM and SIGINT start its drain, SIGHUP reloads the settings. ``reload``: reads the settings again; after its
    errors the old ones stay. None: no signal is handled. ``oneshot``: end once the records of this mode are uploaded,
    or ``timeout_ms`` (None: no limit) have passed. ``progress`` gets a sentence every ``PROGRESS_SECONDS``.
    """
    loop = asyncio.get_running_loop()
    handlers: dict[int, Callable[[], object]] = {}
    if reload is not None:
        handlers = dict.fromkeys((signal.SIGTERM, signal.SIGINT), service.drain)
        handlers[signal.SIGHUP] = lambda: service.reload_from(reload)
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        return await service.run(oneshot=oneshot, timeout_ms=timeout_ms, progress=progress)
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
