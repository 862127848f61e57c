"""One run of ``inspect``: its arguments (files, folders, patterns, partitions, objects), expanded to single files.

All files are inspected in turn. A damaged file does not stop the run.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from tiered.check.findings import Findings, Severity
from tiered.check.inspection import PADDING
from tiered.errors import (
    ConfigError,
    CorruptionError,
    LocalIOError,
    LocalPermissionError,
    NotFoundError,
    TieredError,
    UnknownTopicError,
)
from tiered.format.keys import FLAG_HOLE, FLAG_STAGED, index_key, root_key, segment_key
from tiered.format.local_names import log_name
from tiered.inspect.items import BatchItem, BatchWindow, Content, Item, Tail, decoder_for, log_items
from tiered.inspect.small_files import check_name, is_known, is_log, small_items
from tiered.local.directory.read_only_log import DirectoryView, PartitionFolder, folder_named
from tiered.local.disk.directory_files import CLEAN_SHUTDOWN_NAME
from tiered.local.disk.files import Files, PosixFiles
from tiered.local.disk.partition_files import log_bases
from tiered.local.segment.sealed import FileSource
from tiered.model import ByteSource, TopicPartition
from tiered.plan.root_lower_bounds import RootLowerBounds
from tiered.program.application import STORE_DEADLINE_SECONDS, Application
from tiered.program.open_store import location, open_remote, store_options
from tiered.program.output import counted
from tiered.remote.root_view import RootView
from tiered.remote.topics import load_topic
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from tiered.store.sources import ObjectSource

EXIT_CORRUPTION = CorruptionError.exit_code
MAX_FILES = 1_000_000
"""Most files of one run. A pattern that matches more is a mistake."""

_LOG = re.compile(r"(?P<base>\d{20})(?:-[0-9a-f]{32})?\.log")
_PATTERN = re.compile(r"[*?\[]")
_FILE_URL = "file://"


class DumpRun:
    """State of one ``tiered inspect``: its options, and the numbers of files and damages so far. Not thread-safe.

    ``content``: parts of records to print. ``window``: limits on the batches of each ``.log``.
    """

    def __init__(self, app: Application, content: Content, window: BatchWindow) -> None:
        self._app = app
        self._content = content
        self._window = window
        self._refused: list[TieredError] = []
        self._staged: dict[str, int] = {}
        self.files = 0
        self.damage = 0

    def dump(self, name: str, *, is_only: bool) -> None:
        """Print the items of all files that the argument ``name`` stands for. Damage is printed as a finding.

        Any other error gives a warning. ``is_only``: there is no other argument. Then the error is raised if ``name``
        cannot be resolved, or stands for a single file.
        """
        unlisted: list[TieredError] = []
        self._staged = {}
        try:
            files = expanded(self._app, name, unlisted, staged=self._staged)
        except TieredError as error:
            self._refuse(error, alone=is_only)
            return
        for folder in unlisted:
            self._refuse(folder, alone=False)
        window = self._window
        if window.offset is not None:
            alone = window.max_batches is not None or window.max_bytes is not None
            files = holding(files, window.offset, alone=alone, staged=self._staged)
        for file in files:
            self.files += 1
            try:
                with opened(self._app, file) as source:
                    self._file(file, source)
            except CorruptionError as damage:
                self._damaged(file, damage)
            except TieredError as error:
                self._refuse(error, alone=is_only and len(files) == 1)
            self._app.out.summary_fields.update(files=self.files, findings=self.damage)

    def finish(self) -> int:
        """Print the summary and return the exit code.

        Raises the error of a file that could not be inspected, unless damage was found in others.
        """
        out = self._app.out
        out.summary_fields.update(files=self.files, findings=self.damage)
        if self._refused and not self.damage:
            first = self._refused[0]
            if len(self._refused) > 1:
                first.message = f"{len(self._refused)} files could not be inspected; the first: {first.message}"
            raise first
        code = EXIT_CORRUPTION if self.damage else 0
        out.summary(code)
        if self.damage:
            where = f"{counted(self.damage, 'finding')} in {counted(self.files, 'file')}"
            out.say(f"{where}; `tiered check` looks at whole logs")
        return code

    def _file(self, name: str, source: ByteSource) -> None:
        out, short = self._app.out, name.rsplit("/", 1)[-1]
        check_name(short)
        if not out.json_mode:
            base = self._staged.get(name, 0)
            its_own = f"; of a sink: its offset 0 is {base} of the log" if base else ""
            out.line(f"{name}  {counted(source.size, 'byte')}{its_own}")
        for item in self._items(name, short, source):
            self._item(name, item)

    def _items(self, name: str, short: str, source: ByteSource) -> Iterator[Item]:
        if is_log(short):
            directory = Path(name).absolute().parent.name if "://" not in name else ""
            content = replace(self._content, decoder=decoder_for(self._content.decoder, directory))
            window = replace(self._window, offset=max(0, self._window.start - self._staged.get(name, 0)))
            return log_items(short, source, window, content)
        return small_items(short, source, start=self._window.start)

    def _item(self, name: str, item: Item) -> None:
        out = self._app.out
        if isinstance(item, BatchItem):
            self.damage += not item.valid
        if isinstance(item, Tail):
            self._tail(name, item)
        elif out.json_mode:
            out.message(item.kind, file=name, **item.fields())
        else:
            out.line(item.text())

    def _tail(self, name: str, tail: Tail) -> None:
        if not (tail.zeros and may_grow(name)):
            self._damaged(name, CorruptionError(tail.text(), position=tail.position), code="log_torn")
            return
        findings = Findings(name)
        findings.add(Severity.INFO, "log_torn", tail.text() + PADDING, position=tail.position)
        self._print(findings)

    def _damaged(self, name: str, damage: CorruptionError, *, code: str = "") -> None:
        findings = Findings(name)
        findings.error(code or damage.code, damage.message, position=damage.position, offset=damage.offset)
        self.damage += 1
        self._print(findings)

    def _print(self, findings: Findings) -> None:
        out = self._app.out
        for item in findings.items:
            if out.json_mode:
                out.message("finding", **item.as_json())
            else:
                out.line(str(item))

    def _refuse(self, error: TieredError, *, alone: bool) -> None:
        if alone:
            raise error
        self._app.out.warn(f"{error.message}; going on")
        self._refused.append(error)


def expanded(app: Application, name: str, refused: list[TieredError], *, staged: dict[str, int]) -> list[str]:
    """Return the files that an argument stands for, sorted by name. A file or an object stands for itself.

    A folder stands for its files that can be inspected, a log directory also for those of its partitions. A pattern
    stands for the files that match. ``orders:0`` stands for that partition's files in the log directory, or for its
    objects if it is not there.

    The error of a folder that cannot be listed is added to ``refused``, and raised if nothing else is found. ``staged``
    gets the base offset in the log of each staged ``.log``, whose own offsets begin at 0. Raises NotFoundError if
    nothing has this name. Raises ConfigError for an empty name, a topic, a folder without files that can be inspected,
    or more than ``MAX_FILES`` files.
    """
    if not name:
        raise ConfigError("a FILE is empty", hint="name a file or a folder; . is the current one")
    if "://" in name and not name.startswith(_FILE_URL):
        return [name]
    path = Path(name.removeprefix(_FILE_URL))
    if path.is_dir():
        return _folder(path, refused)
    if path.exists():
        return [name]
    if _PATTERN.search(name):
        return _matching(str(path), refused)
    tp = _partition(name)
    if tp is not None and app.log_dir is not None and (app.log_dir / str(tp)).is_dir():
        return _folder(app.log_dir / str(tp), refused)
    if tp is not None and app.remote is not None:
        place = location(app)
        return _objects(app, place.url if place.scheme == "s3" else app.remote, tp, staged)
    if app.log_dir is not None:
        _refuse_topic(app.log_dir, name)
    where = app.log_dir or app.remote
    if tp is not None and where is not None:
        message = f"the file {path} does not exist, and {where} holds no partition {tp}"
        raise NotFoundError(message, hint="`tiered topic list` names the topics")
    raise NotFoundError(
        f"the file {path} does not exist",
        hint="correct the path"
        if app.log_dir is not None
        else "correct the path, or pass --log-dir for topic-partition",
    )


def _refuse_topic(log_dir: Path, name: str) -> None:
    """Raise ConfigError with the partitions' names if ``name`` is a topic of ``log_dir``."""
    here = DirectoryView.read(log_dir, PosixFiles()).partitions if log_dir.is_dir() else ()
    numbers = sorted(tp.partition for tp in here if tp.topic == name)
    if numbers:
        raise ConfigError(
            f"{name} is a topic, which has no files of its own",
            hint=f"name a partition: {name}:{numbers[0]}"
            + (f" to {name}:{numbers[-1]}, or '{log_dir}/{name}-*/*' for all" if len(numbers) > 1 else ""),
        )


def holding(files: list[str], offset: int, *, alone: bool, staged: Mapping[str, int]) -> list[str]:
    """Return the files with records from ``offset`` on: of each partition the ``.log`` with ``offset``, and later ones.

    ``alone`` leaves out the later ones. A single file, and files without any ``.log``, are returned as they are.
    ``staged``: base offset in the log of each staged ``.log``, whose own offsets begin at 0.
    """
    places: dict[str, list[tuple[int, str]]] = {}
    for file in files:
        found = _LOG.fullmatch(file.rsplit("/", 1)[-1])
        if found is not None or file in staged:
            base = staged[file] if found is None else int(found["base"])
            # A folder has the files of one partition; object URLs, from a folder per claim, are all of one partition.
            place = "" if "://" in file else str(Path(file).parent)
            places.setdefault(place, []).append((base, file))
    if len(files) == 1 or not places:
        return files
    chosen: list[str] = []
    for logs in places.values():
        logs.sort()
        first = max((number for number, (base, _) in enumerate(logs) if base <= offset), default=0)
        chosen += [file for _, file in (logs[first : first + 1] if alone else logs[first:])]
    return chosen


@contextmanager
def opened(app: Application, name: str) -> Iterator[ByteSource]:
    """Open a file or an object for the duration of a block, and yield a source of its bytes.

    Raises NotFoundError if it is missing, LocalIOError if the file cannot be read, an error of the store, or
    ConfigError for a URL that names no object.
    """
    key = _key_of_directory_store(app, name)
    if key is not None:
        with closing(open_remote(app)) as store:
            yield ObjectSource.open(store, key)
        return
    if "://" not in name or name.startswith(_FILE_URL):
        path = Path(name.removeprefix(_FILE_URL))
        try:
            source = FileSource(PosixFiles(), path, path.stat().st_size, sync=False)
        except FileNotFoundError:
            raise NotFoundError(f"the file {path} does not exist", hint="correct the path") from None
        except PermissionError:
            raise LocalPermissionError(f"{path} cannot be read", hint="check its owner and mode") from None
        except OSError as cause:
            raise LocalIOError(f"{path}: {cause.strerror or cause}") from cause
        with closing(source):
            yield source
        return
    place, _, key = name.rpartition("/")
    if not key or place.endswith("/"):
        raise ConfigError(f"{name} is not the URL of an object", hint="write s3://bucket/prefix/.../NAME.log")
    store = StoreLocation.parse(place, **store_options(app, place)).open(
        StoreOptions(deadline_seconds=STORE_DEADLINE_SECONDS)
    )
    try:
        yield ObjectSource.open(store, key)
    finally:
        store.close()


def _key_of_directory_store(app: Application, name: str) -> str | None:
    """Return the key if ``name`` is an object of a ``file://`` remote, otherwise None.

    The store must read it: its files have other names than the objects, and a trailer.
    """
    if app.remote is None or not name.startswith(_FILE_URL):
        return None
    key = name.removeprefix(app.remote.rstrip("/") + "/")
    return None if key == name or Path(name.removeprefix(_FILE_URL)).is_file() else key


def may_grow(name: str) -> bool:
    """Return True if ``name`` is the last ``.log`` of a partition that was not closed. Such a file may end in zeros."""
    path, files = Path(name.removeprefix(_FILE_URL)).absolute(), PosixFiles()
    if "://" in name and not name.startswith(_FILE_URL):
        return False
    folder = path.parent
    found = folder_named(folder.name)
    if not isinstance(found, PartitionFolder) or found.kind or files.state(folder.parent / CLEAN_SHUTDOWN_NAME):
        return False
    bases = log_bases(files, folder)
    return bool(bases) and path.name == log_name(bases[-1])


def _partition(name: str) -> TopicPartition | None:
    """Parse ``topic-0`` or ``topic:0``. Return None for other names."""
    topic, colon, number = name.rpartition(":")
    if colon and not number.isdigit():
        return None
    folder = folder_named(f"{topic}-{number}" if colon else name)
    return folder.tp if isinstance(folder, PartitionFolder) else None


def _objects(app: Application, remote: str, tp: TopicPartition, staged: dict[str, int]) -> list[str]:
    """Return the URLs of a partition's root, ``.log`` and ``.idx`` objects. ``remote``: the URL that they begin with.

    Raises UnknownTopicError if the bucket does not have the partition, NotFoundError if it has no root yet. ``staged``
    gets the base offset in the log of each staged ``.log``, whose own offsets begin at 0.
    """
    store = open_remote(app)
    try:
        entry = drive(store, load_topic(tp.topic))
        if entry is None or tp.partition >= entry.partitions:
            raise UnknownTopicError(f"the bucket has no partition {tp}", hint="`tiered topic list` names what it has")
        pinned = drive(store, RootView(entry.topic_id, tp.partition, tp.topic, RootLowerBounds(made=True)).pin())
        keys = [] if pinned is None else [root_key(entry.topic_id, tp.partition)]
        at = 0
        while pinned is not None and len(rows := drive(store, pinned.piece(at))):
            for row in rows:
                if row.flags & FLAG_STAGED:
                    staged[f"{remote.rstrip('/')}/{segment_key(entry.topic_id, tp.partition, row)}"] = row.base
                if not row.flags & FLAG_HOLE:
                    keys.append(segment_key(entry.topic_id, tp.partition, row))
                    keys.append(index_key(entry.topic_id, tp.partition, row))
            at = rows.end_offset
    finally:
        store.close()
    if not keys:
        raise NotFoundError(
            f"the bucket has no segment of {tp} yet", hint="run `tiered-uploader sync --wait`, or pass --log-dir DIR"
        )
    return [f"{remote.rstrip('/')}/{key}" for key in keys]


def _folder(path: Path, refused: list[TieredError]) -> list[str]:
    files = PosixFiles()
    view = DirectoryView.read(path, files)
    inner = [path / folder.name for folder in view.folders if isinstance(folder, PartitionFolder)]
    found = [file for folder in (path, *inner) for file in _files(files, folder, refused)]
    if not found and refused:
        raise refused.pop(0)
    if not found:
        raise ConfigError(f"the folder {path} holds no file that can be inspected", hint="name a partition's folder")
    return _counted(found, str(path))


def _files(files: Files, path: Path, refused: list[TieredError]) -> list[str]:
    try:
        names = [name for name in files.names(path) if is_known(name)]
        return [str(path / name) for name in names if not files.is_directory(path / name)]
    except LocalIOError as error:
        refused.append(error)
        return []


def _matching(pattern: str, refused: list[TieredError]) -> list[str]:
    found: list[str] = []
    # Path.glob needs one folder for all names and refuses absolute patterns.
    for name in sorted(glob.iglob(pattern, recursive=True)):  # noqa: PTH207
        path = Path(name)
        if path.is_dir():
            found += _files(PosixFiles(), path, refused)
        elif is_known(path.name):
            found.append(name)
    if not found and refused:
        raise refused.pop(0)
    if not found:
        raise NotFoundError(f"nothing that can be inspected matches {pattern}", hint="correct the pattern")
    return _counted(list(dict.fromkeys(found)), pattern)


def _counted(names: list[str], what: str) -> list[str]:
    if len(names) > MAX_FILES:
        raise ConfigError(
            f"{what} selects {len(names):,} files, and the limit is {MAX_FILES:,}", hint="name fewer files"
        )
    return names
