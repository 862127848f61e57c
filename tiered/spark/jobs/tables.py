"""Where an export goes: Parquet files, a Delta table, an Iceberg table. Each commit says which offsets it holds.

::

    target     files of a commit            the commit, once                                  where an export goes on
    parquet    {number}-{task}.parquet      _tieredlog/{number}.plan, then .done: create-only   the last .done
    delta      names of one attempt each    one version, with a transaction a partition         transaction versions
    iceberg    the same                     one snapshot, with the table's properties           table properties

A folder has no commit that makes files visible: what is to be written is noted before the first file, under names that
a second attempt uses again, and nothing else is exported before that is complete. In a table a file that no commit
names is not seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from tiered.clock import SystemIds
from tiered.config import S3Keywords
from tiered.errors import ConfigError, FencedError, NotFoundError, install_command
from tiered.format.crc import crc32c
from tiered.spark.jobs.plan import Receipt, decoded, encoded
from tiered.store.base import Get, Object, Store, list_all
from tiered.store.driver import drive
from tiered.store.location import StoreLocation, open_store
from tiered.store.options import StoreOptions
from tiered.store.puts import put_unique

FOLDER = "_tieredlog"
"""Of a folder of Parquet files; readers pass over names that begin with an underscore."""

PROPERTY = "tieredlog.end."
"""Of an Iceberg table, and the key of a partition: its end."""

COMMIT_ATTEMPTS = 20
"""Commits that others may win before an export gives up."""

Ends = Mapping[str, int]
"""By ``{topic id}-{partition}``: the end of what is in the target, exclusive."""


class Target(Protocol):
    """One place that is exported to. Used on the driver; workers write where ``folder`` and ``name`` say."""

    @property
    def folder(self) -> str:
        """URL of the folder of its files."""

    def ends(self, keys: Iterable[str]) -> Ends:
        """How far it is with these; those that it holds nothing of are left out."""

    def unfinished(self) -> dict[str, Any] | None:
        """What an export that was killed had begun and has to be completed first."""

    def need_fit(self, schema: pa.Schema) -> None:
        """Raises ConfigError if who reads the target would not see all columns of what is to be written."""

    def begin(self, begun: Mapping[str, Any]) -> str:
        """Notes what is to be written, before it is; what the names of its files begin with."""

    def commit(self, begun: Mapping[str, Any], receipts: Sequence[Receipt], schema: pa.Schema) -> bool:
        """Makes the files visible, once. False: an earlier run had. Raises FencedError if another export came first."""


def open_target(arguments: Mapping[str, Any], *, create: bool = False) -> Target:
    """The target that an export names. ``create``: the folder of a log of commits is made."""
    match arguments["format"]:
        case "parquet":
            return ParquetFolder(arguments["to"], arguments["s3"], create=create)
        case "delta":
            return DeltaTarget(arguments["to"], arguments["s3"])
        case _:
            return IcebergTarget(arguments["catalog"], arguments["table"], arguments["to"])


def write_file(folder: str, name: str, data: pa.Buffer, s3: S3Keywords) -> str:
    """Puts a whole file at ``folder/name``, in the place of what was there; its URL."""
    filesystem, path = file_system(f"{folder.rstrip('/')}/{name}", s3)
    if isinstance(filesystem, pafs.LocalFileSystem):
        parent, _, last = path.rpartition("/")
        filesystem.create_dir(parent, recursive=True)
        aside = f"{parent}/.{last}.{SystemIds().uid()[:8]}"
        with filesystem.open_output_stream(aside) as out:
            out.write(data)
        filesystem.move(aside, path)
    else:
        with filesystem.open_output_stream(path) as out:  # visible when it is closed, whole
            out.write(data)
    return f"{folder.rstrip('/')}/{name}"


def file_system(url: str, s3: S3Keywords) -> tuple[pafs.FileSystem, str]:
    """The file system of a URL, and the path in it, as a store at that URL has it: pyarrow's own reading of ``file:``
    takes ``#`` and ``?`` for the end of the path. Credentials come from the environment. Raises ConfigError.
    """
    if url.startswith("s3://"):
        endpoint, region = s3.get("endpoint_url") or None, s3.get("region") or None
        return pafs.S3FileSystem(endpoint_override=endpoint, region=region), url.removeprefix("s3://")
    if url.startswith(("file://", "/")):
        return pafs.LocalFileSystem(), str(StoreLocation.parse(url).path)
    try:
        found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(url)
    except (pa.ArrowInvalid, ValueError) as error:
        raise ConfigError(f"{url} is no place of files: {error}", hint="s3://bucket/prefix, file:///dir") from error
    return found


def _reached(ends: Ends, begun: Mapping[str, Any]) -> bool:
    """Whether the target holds all of it. Raises FencedError where it is neither before nor behind it."""
    ranges: Mapping[str, Sequence[int]] = begun["ranges"]
    if all(ends.get(key, -1) >= end for key, (_, end) in ranges.items()):
        return True
    for key, (start, end) in ranges.items():
        held = ends.get(key)
        if held is not None and held != start:
            raise FencedError(
                f"another export has brought {key} to offset {held}; this one was to go from {start} to {end}",
                hint="nothing of this one is visible; start a new one, which goes on from there",
            )
    return False


def _check_fit(where: str, held: Iterable[str], partitioned_by: Sequence[str], schema: pa.Schema) -> None:
    """A table names its files and its columns apart: a column that only the files have is in no row that is read."""
    if partitioned_by:
        raise ConfigError(
            f"{where} is partitioned by {', '.join(partitioned_by)}, a file of an export holds records of all values",
            hint="export into another table, and let a job fill the partitioned one from it",
        )
    lacking = sorted(set(schema.names) - set(held))
    if lacking:
        raise ConfigError(
            f"{where} has no column {', '.join(lacking)}: what would be written there is not seen",
            hint="add it to the table"
            + (", or leave --headers out" if lacking == ["headers"] else ", or export into another one"),
        )


def _lost(begun: Mapping[str, Any]) -> FencedError:
    return FencedError(
        f"{COMMIT_ATTEMPTS} commits to {begun['to']} were won by others", hint="start it again when fewer write there"
    )


class ParquetFolder:
    """A folder of Parquet files, and ``_tieredlog`` in it: a store of its own, create-only."""

    def __init__(self, url: str, s3: S3Keywords, *, create: bool) -> None:
        self.folder = url.rstrip("/")
        words: S3Keywords = s3 if url.startswith("s3://") else {}
        self._store: Store = open_store(f"{self.folder}/{FOLDER}", StoreOptions(create=create), **words)

    def ends(self, keys: Iterable[str]) -> Ends:
        """Of the newest commit, of all that ever were exported."""
        del keys
        done = self._numbers(".done")
        return {} if not done else self._read(f"{done[-1]:08d}.done")["ends"]

    def unfinished(self) -> dict[str, Any] | None:
        """The plan of a commit that is not done."""
        begun, done = self._numbers(".plan"), self._numbers(".done")
        return self._read(f"{begun[-1]:08d}.plan") if begun and begun[-1:] != done[-1:] else None

    def need_fit(self, schema: pa.Schema) -> None:
        """Each file has columns of its own."""

    def begin(self, begun: Mapping[str, Any]) -> str:
        """Raises FencedError if another export took the number."""
        newest = (self._numbers(".plan") or [0])[-1]
        if newest and self._read(f"{newest:08d}.plan")["job"] == begun["job"]:
            return f"{newest:08d}"
        if _reached(self.ends(()), begun):
            raise FencedError(f"another export into {self.folder} has brought all of this one", hint="start a new one")
        number = newest + 1
        kept = self._keep(f"{number:08d}.plan", {**begun, "number": number}) if self.unfinished() is None else {}
        if kept.get("job") != begun["job"]:
            raise FencedError(
                f"another export into {self.folder} has begun", hint="start a new one: it completes what has begun"
            )
        return f"{number:08d}"

    def commit(self, begun: Mapping[str, Any], receipts: Sequence[Receipt], schema: pa.Schema) -> bool:
        """The files are there: says so."""
        del schema
        number = int(begun["stem"])
        if number in self._numbers(".done"):
            return False
        ends = {**self.ends(()), **{key: end for key, (_, end) in begun["ranges"].items()}}
        self._keep(f"{number:08d}.done", {"ends": ends, "ranges": begun["ranges"], "files": list(receipts)})
        return True

    def _numbers(self, suffix: str) -> list[int]:
        try:
            names = [entry.key for entry in drive(self._store, list_all(""))]
        except NotFoundError:  # no folder yet
            names = []
        return sorted(int(name.removesuffix(suffix)) for name in names if name.endswith(suffix))

    def _keep(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        body = encoded(fields)
        drive(self._store, put_unique(name, body, crc32c(body)))
        return self._read(name)

    def _read(self, name: str) -> dict[str, Any]:
        found = self._store.execute(Get(name))
        return decoded(found.data if isinstance(found, Object) else b"", key=f"{self.folder}/{FOLDER}/{name}")


class DeltaTarget:
    """A Delta table, made by the first export. One transaction id a partition: its version is the end offset."""

    def __init__(self, url: str, s3: S3Keywords) -> None:
        try:
            import deltalake  # noqa: PLC0415  an extra
        except ImportError as error:
            raise ConfigError(f"exports to Delta need deltalake: {error}", hint=install_command("delta")) from error
        if "://" in url and ("?" in url or "#" in url):
            raise ConfigError(f"{url} has a ? or a #, at which the place of a Delta table ends", hint="another name")
        self._delta = deltalake
        self.folder = url.rstrip("/")
        self._options: dict[str, str] = {}
        if url.startswith("s3://"):
            given = {"AWS_ENDPOINT_URL": s3.get("endpoint_url"), "AWS_REGION": s3.get("region")}
            self._options = {key: value for key, value in given.items() if value}
            if str(s3.get("endpoint_url") or "").startswith("http://"):
                self._options["AWS_ALLOW_HTTP"] = "true"

    def _table(self) -> Any:
        if not self._delta.DeltaTable.is_deltatable(self.folder, storage_options=self._options or None):
            return None
        return self._delta.DeltaTable(self.folder, storage_options=self._options or None)

    def ends(self, keys: Iterable[str]) -> Ends:
        """As the newest version of the table says."""
        table = self._table()
        return {} if table is None else _ends_in(table, keys)

    def unfinished(self) -> dict[str, Any] | None:
        """Files of a killed export are not seen."""
        return None

    def need_fit(self, schema: pa.Schema) -> None:
        """Of a table that is there."""
        table = self._table()
        if table is not None:
            held = [field.name for field in table.schema().fields]
            _check_fit(self.folder, held, table.metadata().partition_columns, schema)

    def begin(self, begun: Mapping[str, Any]) -> str:
        """Names of this job alone."""
        return str(begun["job"])

    def commit(self, begun: Mapping[str, Any], receipts: Sequence[Receipt], schema: pa.Schema) -> bool:
        """One version. It conflicts with any other that carries a transaction of one of the partitions."""
        for _ in range(COMMIT_ATTEMPTS):
            table = self._table() or self._delta.DeltaTable.create(
                self.folder, schema, mode="ignore", storage_options=self._options or None
            )
            if _reached(_ends_in(table, begun["ranges"]), begun):
                return False
            try:
                table.create_write_transaction(
                    [self._added(receipt) for receipt in receipts if receipt["rows"]],
                    "append",
                    schema,
                    commit_properties=self._properties(begun),
                )
            except self._delta.exceptions.CommitFailedError:
                continue
            return True
        raise _lost(begun)

    def _added(self, receipt: Receipt) -> Any:
        stats = json.dumps({"numRecords": receipt["rows"]})
        path, size = receipt["name"], receipt["size_bytes"]
        return self._delta.transaction.AddAction(path, size, {}, receipt["written_ms"], True, stats)

    def _properties(self, begun: Mapping[str, Any]) -> Any:
        told = {"tieredlog.ranges": json.dumps(begun["ranges"]), "tieredlog.job": str(begun["job"])}
        ended = [self._delta.Transaction(f"tieredlog-{key}", end) for key, (_, end) in begun["ranges"].items()]
        return self._delta.CommitProperties(custom_metadata=told, app_transactions=ended, max_commit_retries=0)


def _ends_in(table: Any, keys: Iterable[str]) -> Ends:
    found = {key: table.transaction_version(f"tieredlog-{key}") for key in keys}
    return {key: end for key, end in found.items() if end is not None}


class IcebergTarget:
    """An Iceberg table of a catalog that pyiceberg's configuration names; made by the first export."""

    def __init__(self, catalog: str, table: str, location: str | None) -> None:
        try:
            from pyiceberg.catalog import load_catalog  # noqa: PLC0415  an extra
        except ImportError as error:
            raise ConfigError(f"exports to Iceberg need pyiceberg: {error}", hint=install_command("iceberg")) from error
        try:
            self._catalog: Any = load_catalog(catalog)
        except Exception as error:  # each kind of catalog has errors of its own
            raise ConfigError(
                f"the Iceberg catalog {catalog} cannot be opened: {error}",
                hint=f"describe it in .pyiceberg.yaml, or in PYICEBERG_CATALOG__{catalog.upper()}__URI and others",
            ) from error
        self._name, self._location = table, location

    @property
    def folder(self) -> str:
        """Where the table's data is; where it will be, for one that is not there yet."""
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415  an extra

        try:
            return f"{self._catalog.load_table(self._name).location()}/data"
        except NoSuchTableError:
            if self._location:
                return f"{self._location.rstrip('/')}/data"
            raise ConfigError(
                f"there is no Iceberg table {self._name}", hint="--to URL says where a new one is to be"
            ) from None

    def ends(self, keys: Iterable[str]) -> Ends:
        """As the properties of the table say."""
        del keys
        if not self._catalog.table_exists(self._name):
            return {}
        return self._ends_in(self._catalog.load_table(self._name))

    def unfinished(self) -> dict[str, Any] | None:
        """Files of a killed export are not seen."""
        return None

    def need_fit(self, schema: pa.Schema) -> None:
        """Of a table that is there. The partition of a file is found by pyiceberg, or refused."""
        if self._catalog.table_exists(self._name):
            held = [field.name for field in self._catalog.load_table(self._name).schema().fields]
            _check_fit(self._name, held, (), schema)

    def begin(self, begun: Mapping[str, Any]) -> str:
        """Names of this job alone."""
        return str(begun["job"])

    def commit(self, begun: Mapping[str, Any], receipts: Sequence[Receipt], schema: pa.Schema) -> bool:
        """One snapshot, with the ends in the table's properties; it fails if another snapshot came in between."""
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException  # noqa: PLC0415

        paths = [receipt["path"] for receipt in receipts if receipt["rows"]]
        namespace = self._name.rpartition(".")[0]
        self._catalog.create_namespace_if_not_exists(namespace)
        self._catalog.create_table_if_not_exists(self._name, schema, location=self._location)
        for _ in range(COMMIT_ATTEMPTS):
            table = self._catalog.load_table(self._name)
            if _reached(self._ends_in(table), begun):
                return False
            if not paths:
                return True  # without a snapshot nothing would conflict, and an older end could replace a newer one
            told = {"tieredlog.ranges": json.dumps(begun["ranges"]), "tieredlog.job": str(begun["job"])}
            try:
                with table.transaction() as change:
                    change.set_properties({f"{PROPERTY}{key}": str(end) for key, (_, end) in begun["ranges"].items()})
                    change.add_files(paths, snapshot_properties=told)
            except (CommitFailedException, CommitStateUnknownException):
                continue
            return True
        raise _lost(begun)

    @staticmethod
    def _ends_in(table: Any) -> Ends:
        told = table.properties.items()
        return {name.removeprefix(PROPERTY): int(end) for name, end in told if name.startswith(PROPERTY)}
