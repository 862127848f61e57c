"""The uploader inside an application: ``tiered.open(path, remote=..., uploader=Uploader())``.

It runs the same service as the daemon, on its own thread and event loop. It holds ``tiered-uploader.lock``. The
application holds ``.lock``, so the uploader writes ``tiered-seal-request`` to request a roll.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tiered.config import StoreLimits
from tiered.engine.reports import Exit
from tiered.errors import ClosedError, ConfigError, RemoteUnavailableError, TieredError
from tiered.format.locks import SafeEvent
from tiered.program.settings import PLACE
from tiered.store.aio_driver import DaemonLoop
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from uploader.config import Settings
from uploader.service import Service, ServicePlace

START_SECONDS = 30.0
"""Seconds that ``attach`` waits for the lock and the journal. It never waits for the store."""

SCAN_MS = 500
"""Milliseconds between scans: cheap in the application's process, and ``durability="remote"`` waits for one."""


class Uploader:
    """Uploader for ``tiered.open(uploader=...)``. ``settings``: those of the daemon (``uploader.config.Settings``).

    None: the defaults, but without an HTTP server and with two scans a second. Raises ConfigError for settings that do
    not apply here: log directory, remote, sidecar, log format.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings(http=None, scan=SCAN_MS)
        ignored = [
            name
            for name in (*(setting.name for setting in PLACE), "sidecar", "log_format")
            if getattr(self._settings, name) is not None
        ]
        if ignored:
            raise ConfigError(
                f"an uploader inside a program has no setting {' and no '.join(ignored)}",
                hint="give log directory and remote to tiered.open; run a sidecar with `tiered-uploader run --sidecar`",
            )

    def attach(self, directory: Path, location: StoreLocation, options: StoreOptions) -> AttachedUploader:
        """Start uploading the sealed segments of ``directory`` to ``location``. Return once its lock is acquired.

        ``options``: the log's store options. Its limits apply to log and uploader together. Raises LockedError if
        another uploader runs, ConfigError if limits were given to the log and to the uploader. Raises
        RemoteUnavailableError if the uploader has not started after ``START_SECONDS``.
        """
        if options.limits is not None and self._settings.store_limits != StoreLimits():
            raise ConfigError(
                "limits are given twice: to the log and to its uploader",
                hint="leave them out of the uploader's settings: LogConfig(limits=...) applies to both together",
            )
        return AttachedUploader(Service(ServicePlace(Path(directory), location), self._settings, options=options))


class AttachedUploader:
    """Running uploader of an open log. Thread-safe."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._asyncio = asyncio.Runner(loop_factory=DaemonLoop)  # the application's main thread may end before it
        self._loop = self._asyncio.get_loop()
        self._started: Future[None] = Future()
        self._ended = SafeEvent()
        self._closing = False
        self._error: TieredError | None = None
        self._lock = threading.Lock()
        self._callback: Callable[[TieredError], None] | None = None
        self._thread = threading.Thread(target=self._main, name="tiered-uploader", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # since Python 3.12 no thread starts once the main thread has ended
            self._asyncio.close()
            raise TieredError(
                f"the uploader cannot start: {error}", hint="start it before the main thread ends"
            ) from error
        try:
            self._started.result(START_SECONDS)
        except TimeoutError:
            self.close(0)
            raise RemoteUnavailableError(
                f"the uploader has not started within {START_SECONDS:.0f} s",
                hint="check the disk of the log directory, then open the log again",
            ) from None

    @property
    def error(self) -> TieredError | None:
        """Return the error with which the uploader ended by itself. None while it runs, and after ``close``."""
        return self._error

    def when_ended(self, callback: Callable[[TieredError], None]) -> None:
        """Call ``callback`` with the error, from the uploader's thread, once the uploader ends by an error.

        If it has already ended so, call it at once on this thread. :meth:`close` causes no call.
        """
        with self._lock:
            self._callback, error = callback, self._error
        if error is not None:
            callback(error)

    def scan_now(self) -> None:
        """Scan the disk at once, and retry after failures that pass by themselves."""
        self._call(self._service.scan_now)

    def status(self) -> dict[str, Any]:
        """Return the same document as a daemon's ``/status``: the state of each partition, and why it waits.

        Raises the error that ended the uploader, ClosedError after ``close``, and the error of a file that cannot be
        read.
        """
        answer: Future[dict[str, Any]] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._service.status())
            except TieredError as error:  # such as a file of the directory that cannot be read
                answer.set_exception(error)

        if not self._call(ask):
            self._ended.wait(START_SECONDS)
            raise self._error or ClosedError("the uploader is closed", hint="open the log again")
        return answer.result(START_SECONDS)

    def close(self, timeout: float) -> None:
        """Finish and commit uploads in progress, within ``timeout`` seconds. Other records stay on the disk."""
        self._closing = True
        self._call(lambda: self._service.finish(int(timeout * 1000)))
        self._thread.join(timeout + 5.0)

    def _call(self, what: Callable[[], None]) -> bool:
        """Run ``what`` on the loop. Return False, without a call, if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return False
        return True

    def _main(self) -> None:
        try:
            with self._asyncio as runner:
                ending = runner.run(self._service.run(started=lambda: self._started.set_result(None)))
            self._end(self._reason(ending))
        except BaseException as error:  # noqa: BLE001 - a thread that dies silently is the worst uploader
            has_started = self._started.done()
            self._end(
                error
                if isinstance(error, TieredError)
                else TieredError(f"the uploader failed: {error!r}", hint="report this defect, and open the log again")
            )
            if not has_started:
                self._started.set_exception(error)

    def _end(self, error: TieredError | None) -> None:
        with self._lock:
            self._error, callback = error, self._callback
        self._ended.set()
        if error is not None and callback is not None:
            callback(error)

    def _reason(self, ending: Exit) -> TieredError | None:
        return None if self._closing or ending.code == 0 else TieredError(ending.reason, hint=ending.hint)
