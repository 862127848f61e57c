"""Functions that open a log for reading, and errors for wrong names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import tiered
from tiered.arguments import at_home
from tiered.errors import (
    ConfigError,
    CorruptionError,
    LocalIOError,
    LocalPermissionError,
    NotFoundError,
    TieredError,
    UnknownTopicError,
)
from tiered.local.directory.read_only_log import DirectoryView, PartitionFolder
from tiered.local.disk.directory_files import META_PROPERTIES_NAME
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.topics import refuse_partition
from tiered.program.application import STORE_DEADLINE_SECONDS, Application
from tiered.program.settings import suggestion
from tiered.read.topic import TopicReads

T = TypeVar("T")


def open_reader(app: Application, as_of: str | None = None, *, pin: bool = False) -> tiered.Reader:
    """Open the log directory and the bucket of the command line for reading.

    ``as_of``: open a past state of the bucket, without the log directory.
    """
    if as_of is not None:
        return _open_remote_reader(app, app.need_remote(), as_of=as_of, pin=pin)
    app.need_a_tier()
    need_directory(app)
    if app.remote is None:
        return tiered.open_reader(log_dir=app.log_dir, pin=pin)
    return _open_remote_reader(app, app.remote, log_dir=app.log_dir, pin=pin)


def _open_remote_reader(
    app: Application, url: str, *, log_dir: Path | None = None, as_of: str | None = None, pin: bool
) -> tiered.Reader:
    # The stores are imported late: a command that reads a disk alone starts without them.
    from tiered.program.open_store import location, store_options  # noqa: PLC0415

    location(app)
    options = store_options(app, url)
    return tiered.open_reader(
        url, log_dir=log_dir, as_of=as_of, pin=pin, deadline_seconds=STORE_DEADLINE_SECONDS, **options
    )


def need_topic(name: str, known: Iterable[str]) -> None:
    """Raise UnknownTopicError, which suggests a similar name, unless ``name`` is in ``known``."""
    names = sorted(known)
    if name in names:
        return
    stem, _, number = name.rpartition("-")
    if stem in names and number.isdigit():
        raise UnknownTopicError(f"there is no topic {name!r}", hint=f"did you mean partition {stem}:{number}?")
    hint = suggestion(name, names) or (f"topics: {', '.join(names[:20])}" if names else "the log has no topics yet")
    raise UnknownTopicError(f"there is no topic {name!r}", hint=hint)


def topic_to_read(reader: tiered.Reader, name: str) -> TopicReads:
    """Open the topic ``name``. Other registry entries, which may be damaged, are only read for a suggestion.

    Raises UnknownTopicError, which suggests a similar name. Raises LogDestroyedError if the topic is being deleted or
    its entry was lost, CorruptionError if the entry is damaged, ConfigError if disk and bucket differ in the topic id.
    """
    try:
        return reader.topic(name)
    except UnknownTopicError:
        unreadable: dict[str, TieredError] = {}
        need_topic(name, {*reader.topics(unreadable), *unreadable})  # raises a better suggestion, if there is one
        raise


def collect_each(
    app: Application, topic: str, partitions: Sequence[int], look: Callable[[int], Iterable[T]]
) -> tuple[list[T], int]:
    """Call ``look`` for each partition. Return the results as one list, and the first failure's exit code (0: none).

    A partition that cannot be read gives a warning. If ``partitions`` has no other, its error is raised.
    """
    found, code = list[T](), 0
    for partition in partitions:
        try:
            found += look(partition)
        except (CorruptionError, LocalIOError, UnknownTopicError) as refused:
            if len(partitions) == 1:
                raise
            code = code or pass_over(app, topic, partition, refused)
    return found, code


def pass_over(app: Application, topic: str, partition: int, refused: TieredError) -> int:
    """Print a warning for a partition that cannot be read, while others can. Return the exit code of its error."""
    app.out.warn(f"{topic}-{partition}: {refused}; going on")
    return refused.exit_code


def need_directory(app: Application) -> None:
    """Raise an error if the given log directory cannot be read. Do nothing if none was given."""
    refused = directory_error(app)
    if refused is not None:
        raise refused


def directory_error(app: Application) -> TieredError | None:
    """Return the error if the given log directory cannot be read. None if it can, or if none was given."""
    directory = app.log_dir
    if directory is None:
        return None
    if app.remote is not None:
        hint = f"`tiered restore --remote {app.remote} --log-dir {directory}` rebuilds it; reading needs no --log-dir"
    else:
        hint = "correct --log-dir, or create a topic first"
    try:
        refuse_file(directory)
        if not directory.exists():
            return NotFoundError(f"the log directory {directory} does not exist", hint=hint)
        refuse_partition(directory, PosixFiles())
        if not _is_log(directory):
            return NotFoundError(
                f"{directory} is no log directory: it holds no meta.properties, no partition", hint=hint
            )
    except (PermissionError, LocalPermissionError):
        return LocalPermissionError(f"the log directory {directory} cannot be read", hint="check its owner and mode")
    except TieredError as refused:
        return refused
    return None


def folder(name: str, text: str, hint: str = "name a folder; . is the current one") -> Path:
    """Return ``text``, the value of the option or argument ``name``, as a path.

    Raises ConfigError, with ``hint``, for empty text, which would mean the current folder.
    """
    if not text:
        raise ConfigError(f"{name} is empty", hint=hint)
    return at_home(name, Path(text))


def refuse_file(directory: Path) -> None:
    """Raise ConfigError if ``directory`` is a file."""
    if directory.exists() and not directory.is_dir():
        hint = "name the directory that holds the partitions"
        raise ConfigError(f"{directory} is a file, not a log directory", hint=hint)


def refuse_foreign(directory: Path) -> None:
    """Raise ConfigError if ``directory`` has files, and none of a log. Hidden ones and ``lost+found`` do not count."""
    refuse_partition(directory, PosixFiles())
    try:
        names = [] if not directory.is_dir() or _is_log(directory) else [path.name for path in directory.iterdir()]
    except PermissionError:
        return  # the open reports it
    foreign = [name for name in names if not name.startswith((".", "tiered-")) and name != "lost+found"]
    if foreign:
        raise ConfigError(
            f"{directory} has files that are not a log's, such as {min(foreign)!r}",
            hint="name a new or empty folder for the log",
        )


def _is_log(directory: Path) -> bool:
    if (directory / META_PROPERTIES_NAME).exists():
        return True
    seen = DirectoryView.read(directory, PosixFiles())
    if any(isinstance(folder, PartitionFolder) for folder in seen.folders):
        return True
    if seen.strange:
        raise seen.strange[0].refusal
    return False
