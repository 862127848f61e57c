"""``tiered dump-segment FILE...``: what a file of a log holds, on this disk or in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click

from tiered.cli.application import Application, Command, pass_application
from tiered.cli.doors import store_options
from tiered.cli.dump import base_of, check_name, dump
from tiered.cli.output import counted
from tiered.cli.patience import PATIENCE_SECONDS
from tiered.errors import ConfigError, CorruptionError, NotFoundError
from tiered.findings import Findings, Severity
from tiered.format.keys import INDEX_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from tiered.inspection import Expectations, inspect_log
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.sealed import FileSource
from tiered.model import ByteSource, SealedIndexes
from tiered.object_source import ObjectSource
from tiered.store.location import StoreLocation

EXIT_CORRUPTION = CorruptionError.exit_code


@click.command("dump-segment", cls=Command)
@click.argument("names", nargs=-1, required=True, metavar="FILE...")
@click.option("-r", "--records", is_flag=True, help="print every record of a .log too")
@click.option("--verify", is_flag=True, help="check CRCs, offsets, records, and the indexes beside a .log")
@pass_application
def command(app: Application, names: tuple[str, ...], records: bool, verify: bool) -> int:
    """Print batches, records, index entries, snapshots and checkpoints; works on any Kafka log directory.

    FILE is a path, or the URL of an object. Exit code 13 if something is damaged.

    \b
    Examples:
      tiered dump-segment data/flights-0/00000000000000000000.log --records
      tiered dump-segment --verify data/flights-0/*.log
      tiered dump-segment s3://acme-logs/prod/3f/.../00000000000000000000-0123.log --json
    """
    app.out.begin("dump-segment", files=0, findings=0)
    damaged = 0
    for number, name in enumerate(names, start=1):
        with _open(app, name) as source:
            damaged += _dump(app, name, source, records=records)
            if verify and name.endswith(".log"):
                damaged += _verify(app, name, source)
        app.out.summary_fields.update(files=number, findings=damaged)
    code = EXIT_CORRUPTION if damaged else 0
    app.out.summary(code)
    if damaged:
        app.out.say(f"{counted(damaged, 'finding')}: the file is damaged; `tiered check` looks at the whole log")
    return code


def _dump(app: Application, name: str, source: ByteSource, *, records: bool) -> int:
    """Prints one file; gives the number of damages met."""
    check_name(name.rsplit("/", 1)[-1])
    if not app.out.json_mode:
        app.out.line(f"{name}  {counted(source.size, 'byte')}")
    damaged = 0
    end = 0
    try:
        for item in dump(name.rsplit("/", 1)[-1], source, records=records):
            if item.kind == "batch":
                damaged += not item.fields["valid"]
                end = item.fields["position"] + item.fields["size_bytes"]
            if app.out.json_mode:
                app.out.message(item.kind, file=name, **item.fields)
            else:
                app.out.line(item.text)
    except CorruptionError as damage:
        finding = Findings(name)
        finding.error(damage.code, damage.message, position=damage.position, offset=damage.offset)
        _print(app, finding)
        return damaged + 1
    if end and end < source.size:
        rest = source.size - end
        app.out.warn(f"{name}: {counted(rest, 'byte')} {'follows' if rest == 1 else 'follow'} the last whole batch")
    return damaged


def _verify(app: Application, name: str, source: ByteSource) -> int:
    findings = Findings(name)
    indexes = _indexes_beside(name)
    inspect_log(source, base_of(name), findings, Expectations(decode=True), indexes=indexes)
    _print(app, findings)
    return sum(1 for item in findings.items if item.severity is Severity.ERROR)


def _print(app: Application, findings: Findings) -> None:
    for item in findings.items:
        if app.out.json_mode:
            app.out.message("finding", **item.as_json())
        else:
            app.out.line(str(item))


def _indexes_beside(name: str) -> SealedIndexes | None:
    """The index files beside a local ``.log``; None where there is no offset index, as for an object."""
    path = Path(name)
    if "://" in name or not path.with_suffix(INDEX_SUFFIX).exists():
        return None

    def read(suffix: str) -> bytes:
        file = path.with_suffix(suffix)
        return file.read_bytes() if file.exists() else b""

    return SealedIndexes(read(INDEX_SUFFIX), read(TIME_INDEX_SUFFIX), read(TXN_INDEX_SUFFIX), read(SNAPSHOT_SUFFIX))


@contextmanager
def _open(app: Application, name: str) -> Iterator[ByteSource]:
    if "://" not in name or name.startswith("file://"):
        path = Path(name.removeprefix("file://"))
        if path.is_dir():
            raise ConfigError(f"{path} is a directory", hint=f"name its files: {path}/*.log")
        if not path.is_file():
            raise NotFoundError(f"the file {path} does not exist", hint="correct the path")
        with closing(FileSource(PosixFiles(), path, path.stat().st_size, sync=False)) as source:
            yield source
        return
    place, _, key = name.rpartition("/")
    if not key or place.endswith("/"):
        raise ConfigError(f"{name} names no object", hint="s3://bucket/prefix/.../NAME.log")
    store = StoreLocation.parse(place, **store_options(app, place)).open(deadline_seconds=PATIENCE_SECONDS)
    try:
        yield ObjectSource.open(store, key)
    finally:
        store.close()
