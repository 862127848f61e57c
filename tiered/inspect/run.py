"""One run of ``inspect``: its arguments (files, folders, partitions, objects), expanded to single files.

All files are inspected in turn. A damaged file does not stop the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
)
from tiered.format.local_names import log_name
from tiered.inspect.items import BatchItem, BatchWindow, Content, Item, Tail, decoder_for, log_items
from tiered.inspect.small_files import check_name, is_known, is_log, small_items
from tiered.local.directory.read_only_log import DirectoryView, PartitionFolder, folder_named
from tiered.local.disk.directory_files import CLEAN_SHUTDOWN_NAME
from tiered.local.disk.files import Files, PosixFiles
from tiered.local.disk.partition_files import log_bases
from tiered.local.segment.sealed import FileSource
from tiered.model import ByteSource, TopicPartition
from tiered.program.application import STORE_DEADLINE_SECONDS, Application
from tiered.program.open_store import open_remote, store_options
from tiered.program.output import counted
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from tiered.store.sources import ObjectSource

EXIT_CORRUPTION = CorruptionError.exit_code
_LOG = re.compile(r"(?P<base>\d{20})(?:-[0-9a-f]{32})?\.log")
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
        self.files = 0
        self.damage = 0

    def dump(self, name: str, *, is_only: bool) -> None:
        """Print the items of all files that the argument ``name`` stands for. Damage is printed as a finding.

        Any other error gives a warning. ``is_only``: there is no other argument. Then the error is raised if ``name``
        cannot be resolved, or stands for a single file.
        """
        unlisted: list[TieredError] = []
        try:
            files = expanded(self._app, name, unlisted)
        except TieredError as error:
            self._refuse(error, alone=is_only)
            return
        for folder in unlisted:
            self._refuse(folder, alone=False)
        window = self._window
        if window.offset is not None:
            files = holding(files, window.offset, alone=window.max_batches is not None)
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
            out.line(f"{name}  {counted(source.size, 'byte')}")
        for item in self._items(name, short, source):
            self._item(name, item)

    def _items(self, name: str, short: str, source: ByteSource) -> Iterator[Item]:
        if is_log(short):
            directory = Path(name).absolute().parent.name if "://" not in name else ""
            content = replace(self._content, decoder=decoder_for(directory))
            return log_items(short, source, self._window, content)
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


def expanded(app: Application, name: str, refused: list[TieredError]) -> list[str]:
    """Return the files that an argument stands for, sorted by name. A file or an object stands for itself.

    A folder stands for its files that can be inspected, a log directory also for those of its partitions. ``orders:0``
    stands for that partition's files in the log directory.

    The error of a folder that cannot be listed is added to ``refused``, and raised if nothing else is found. Raises
    NotFoundError if nothing has this name, ConfigError for an empty name or a folder without files to inspect.
    """
    if not name:
        raise ConfigError("a FILE is empty", hint="name a file or a folder; . is the current one")
    if "://" in name and not name.startswith(_FILE_URL):
        return [name]
    path = Path(name.removeprefix(_FILE_URL))
    if path.is_dir():
        return _folder(path, refused)
    # An object of a file:// remote has no file of its own name.
    if path.exists() or _key_of_directory_store(app, name) is not None:
        return [name]
    tp = _partition(name)
    if tp is not None and app.log_dir is not None and (app.log_dir / str(tp)).is_dir():
        return _folder(app.log_dir / str(tp), refused)
    where = "" if app.log_dir is None else f", and {app.log_dir} holds no partition of this name"
    raise NotFoundError(
        f"the file {path} does not exist{where}", hint="correct the path, or name TOPIC:P and its --log-dir"
    )


def holding(files: list[str], offset: int, *, alone: bool) -> list[str]:
    """Return the files with records from ``offset`` on: of each partition the ``.log`` with ``offset``, and later ones.

    ``alone`` leaves out the later ones. A single file, and files without any ``.log``, are returned as they are.
    """
    places: dict[str, list[tuple[int, str]]] = {}
    for file in files:
        if (found := _LOG.fullmatch(file.rsplit("/", 1)[-1])) is not None:
            places.setdefault(str(Path(file).parent), []).append((int(found["base"]), file))
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


def _folder(path: Path, refused: list[TieredError]) -> list[str]:
    files = PosixFiles()
    view = DirectoryView.read(path, files)
    inner = [path / folder.name for folder in view.folders if isinstance(folder, PartitionFolder)]
    found = [file for folder in (path, *inner) for file in _files(files, folder, refused)]
    if not found and refused:
        raise refused.pop(0)
    if not found:
        raise ConfigError(f"the folder {path} holds no file that can be inspected", hint="name a partition's folder")
    return found


def _files(files: Files, path: Path, refused: list[TieredError]) -> list[str]:
    try:
        names = [name for name in files.names(path) if is_known(name)]
        return [str(path / name) for name in names if not files.is_directory(path / name)]
    except LocalIOError as error:
        refused.append(error)
        return []
