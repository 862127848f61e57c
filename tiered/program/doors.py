"""How commands open logs to read them, and how they explain wrong names."""

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
from tiered.local.directory.view import DirectoryView, PartitionFolder
from tiered.local.disk.checkpoints import META_PROPERTIES_NAME
from tiered.local.disk.files import PosixFiles
from tiered.program.application import STORE_DEADLINE_SECONDS, Application
from tiered.program.settings import suggestion
from tiered.read.topic import TopicReads

T = TypeVar("T")


def open_reader(app: Application, as_of: str | None = None, *, pin: bool = False) -> tiered.Reader:
    """Both tiers, whichever were named, read-only: no lock is taken and nothing is written but what ``pin`` asks for.

    ``as_of``: the bucket alone, as it was.
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
    # The stores: a command that reads a disk alone starts without them.
    from tiered.program.stores import location, store_options  # noqa: PLC0415

    location(app)
    options = store_options(app, url)
    return tiered.open_reader(
        url, log_dir=log_dir, as_of=as_of, pin=pin, deadline_seconds=STORE_DEADLINE_SECONDS, **options
    )


def need_topic(name: str, known: Iterable[str]) -> None:
    """Raises ``UnknownTopicError`` with a suggestion unless ``name`` is one of ``known``."""
    names = sorted(known)
    if name in names:
        return
    stem, _, number = name.rpartition("-")
    if stem in names and number.isdigit():
        raise UnknownTopicError(f"there is no topic {name!r}", hint=f"did you mean partition {stem}:{number}?")
    hint = suggestion(name, names) or (f"topics: {', '.join(names[:20])}" if names else "the log has no topics yet")
    raise UnknownTopicError(f"there is no topic {name!r}", hint=hint)


def topic_to_read(reader: tiered.Reader, name: str) -> TopicReads:
    """The topic ``name``, asked for alone: an entry of another one that cannot be read hinders nobody here."""
    try:
        return reader.topic(name)
    except UnknownTopicError:
        unreadable: dict[str, TieredError] = {}
        need_topic(name, {*reader.topics(unreadable), *unreadable})  # which may know better what was meant
        raise


def chosen_partitions(topic: str, count: int, partition: int | None) -> list[int]:
    """All partitions, or the one that was named."""
    if partition is None:
        return list(range(count))
    if partition >= count:
        raise UnknownTopicError(
            f"topic {topic} has no partition {partition}", hint=f"its partitions are 0 to {count - 1}" if count else ""
        )
    return [partition]


def of_each(
    app: Application, topic: str, partitions: Sequence[int], look: Callable[[int], Iterable[T]]
) -> tuple[list[T], int]:
    """What ``look`` finds of each partition, and the exit code: of the first that cannot be read; each is a warning.

    Of several one keeps back no other; the only one that was asked for raises.
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
    """A warning of a partition that cannot be read where others can; its exit code, which is the command's."""
    app.out.warn(f"{topic}-{partition}: {refused}; going on")
    return refused.exit_code


def need_directory(app: Application) -> None:
    """Raises what :func:`directory_error` finds."""
    refused = directory_error(app)
    if refused is not None:
        raise refused


def directory_error(app: Application) -> TieredError | None:
    """Why the log directory that was named cannot be read; None if it can, or if none was named."""
    directory = app.log_dir
    if directory is None:
        return None
    if app.remote is not None:
        hint = f"`tiered restore --remote {app.remote} --to {directory}` rebuilds it; reading needs no --log-dir"
    else:
        hint = "correct --log-dir, or create a topic first"
    try:
        refuse_file(directory)
        if not directory.exists():
            return NotFoundError(f"the log directory {directory} does not exist", hint=hint)
        if not _is_log(directory):
            return NotFoundError(
                f"{directory} is no log directory: it holds no meta.properties, no partition", hint=hint
            )
    except (PermissionError, LocalPermissionError):
        return LocalPermissionError(f"the log directory {directory} cannot be read", hint="check its owner and mode")
    except TieredError as refused:
        return refused
    return None


def folder(name: str, text: str) -> Path:
    """A folder that an option or argument names; an empty text would be the current one."""
    if not text:
        raise ConfigError(f"{name} is empty", hint="name a folder; . is the current one")
    return at_home(name, Path(text))


def refuse_file(directory: Path) -> None:
    """Raises ``ConfigError`` for a log directory that is a file."""
    if directory.exists() and not directory.is_dir():
        hint = "name the directory that holds the partitions"
        raise ConfigError(f"{directory} is a file, not a log directory", hint=hint)


def _is_log(directory: Path) -> bool:
    if (directory / META_PROPERTIES_NAME).exists():
        return True
    seen = DirectoryView.look(directory, PosixFiles())
    if any(isinstance(folder, PartitionFolder) for folder in seen.folders):
        return True
    if seen.strange:
        raise seen.strange[0].refusal
    return False
