"""``tiered restore --follow`` and ``--promote``: a directory that follows a bucket, and the end of that."""

from __future__ import annotations

import threading

from tiered.check.findings import handed_on
from tiered.config import parse_duration_ms
from tiered.errors import ConfigError, RemoteUnavailableError, TieredError
from tiered.local.disk.files import PosixFiles
from tiered.program.application import Application
from tiered.program.open_reader import refuse_file
from tiered.program.open_store import open_remote
from tiered.program.output import columns, counted, human_bytes
from tiered.program.progress import Progress
from tiered.restore.standby import PullReport, Standby, promote
from tiered.store.driver import Runner

EVERY = "5s"
"""Rest between two pulls."""


def tend_standby(app: Application, every: str, *, follow: bool, once: bool, promoted: bool) -> int:
    """Follow a bucket, or end that. Raises ConfigError for options that exclude each other."""
    if follow == promoted or (promoted and once):
        raise ConfigError("--follow, also with --once, and --promote exclude each other", hint="choose one of them")
    refuse_file(app.need_log_dir())
    return _promote(app) if promoted else _follow(app, every, once=once)


def _follow(app: Application, every: str, *, once: bool) -> int:
    """Pull again and again until the process is stopped, or once. An outage of the store is waited out."""
    rest_seconds = parse_duration_ms(every, "--every") / 1000
    if rest_seconds <= 0:
        raise ConfigError(f"--every {every}: the rest between pulls must be longer than 0", hint="5s, 1m")
    app.out.start("restore", directory=str(app.need_log_dir()), segments=0, size_bytes=0)
    store, never, warned = open_remote(app), threading.Event(), set[str]()
    try:
        with Standby(store.url, app.need_log_dir(), clock=app.clock, ids=app.ids, files=PosixFiles()) as standby:
            while True:
                try:
                    with Progress(app, "pulling", is_bytes=True) as progress:
                        steps = standby.pull()
                        report = Runner(store, app.clock, app.ids).run(steps, handed_on(progress.show))
                except RemoteUnavailableError as outage:
                    report = PullReport(errors=(outage,))
                _show(app, report, warned, once=once)
                if once:
                    break
                app.clock.wait(never, rest_seconds)
    finally:
        store.close()
    app.out.summary(0)
    return 0


def _show(app: Application, report: PullReport, warned: set[str], *, once: bool) -> None:
    """Print what a pull changed. A lasting error is a warning once; with ``once`` it is raised."""
    for name in report.dropped:
        app.out.warn(f"topic {name} was deleted in the bucket, and here")
    for note in report.notes:
        app.out.warn(note)
    app.out.summary_fields["segments"] += report.segments
    app.out.summary_fields["size_bytes"] += report.size_bytes
    if app.out.json_mode and not report.is_empty:
        app.out.message("pulled", segments=report.segments, size_bytes=report.size_bytes)
    elif report.segments or once:
        app.out.line(f"{counted(report.segments, 'segment')}, {human_bytes(report.size_bytes)} pulled")
    app.out.flush()
    for error in report.errors:
        if once:
            raise error
        if error.message not in warned:
            app.out.warn(_text(error))
    warned.clear()
    warned.update(error.message for error in report.errors)


def _text(error: TieredError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _promote(app: Application) -> int:
    """Pull once more, claim every partition, and make the directory a log like any other."""
    directory, store = app.need_log_dir(), open_remote(app)
    try:
        with Progress(app, "pulling", is_bytes=True) as progress:
            take = handed_on(progress.show)
            ends, notes = promote(store, directory, clock=app.clock, ids=app.ids, files=PosixFiles(), take=take)
    finally:
        store.close()
    for note in notes:
        app.out.warn(note)
    partitions = [{"topic": tp.topic, "partition": tp.partition, "end_offset": end} for tp, end in ends.items()]
    text = [
        *columns(["partition", "end"], [[tp, end] for tp, end in ends.items()]),
        f"{directory} is the writer of {store.url} now: start the application with it",
    ]
    return app.out.result("restore", {"directory": str(directory), "partitions": partitions}, text)
