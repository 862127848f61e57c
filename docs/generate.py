"""Hooks of MkDocs: pages that are made from the code, and links between files of the repository as links of the site.

Each page is a function of :data:`PAGES`. Nothing is written into the checkout. A page fails the build where the code has
a setting that it cannot explain.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import tiered
from tiered import config, errors
from tiered.cli.main import tiered as tiered_command
from tiered.metrics import HELP, PREFIX
from tiered.program import settings
from tiered.program.command_line import run_command
from uploader.config import RELOADABLE

INCLUDED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CONTRIBUTING.md": "contribute/index.md",
    "CHANGELOG.md": "contribute/changelog.md",
    "tests/README.md": "contribute/tests.md",
    "examples/README.md": "how-to/examples.md",
}
"""Files outside docs/ that are pages of the site."""

LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)#\s]*)(#[^)]*)?\)")

SENTENCES = {
    "cleanup.policy": "`delete`, `compact`, or both: expire old segments, keep the newest record of each key",
    "compression.type": "codec of stored batches; `producer` keeps the one that a batch has",
    "compression.gzip.level": "level of gzip",
    "compression.lz4.level": "level of lz4",
    "compression.zstd.level": "level of zstd",
    "delete.retention.ms": "how long a compacted topic keeps tombstones",
    "file.delete.delay.ms": "time between the end of a local segment and the deletion of its files",
    "flush.messages": "records after which an append fsyncs by itself",
    "flush.ms": "age of an unflushed record at which it is fsynced",
    "gc.grace.ms": "how long replaced objects stay in the bucket",
    "index.interval.bytes": "bytes between two entries of an offset index",
    "local.retention.bytes": "bytes of a partition that stay on the disk after their upload",
    "local.retention.ms": "age at which uploaded segments leave the disk",
    "max.compaction.lag.ms": "age of a record at which it must be compacted",
    "max.message.bytes": "largest batch",
    "merge.idle.ms": "age of the newest record before small segments are merged",
    "merge.min.bytes": "segments of the bucket below this size are merged",
    "merge.target.bytes": "size of a merged segment",
    "message.timestamp.after.max.ms": "how far in the future a timestamp may be",
    "message.timestamp.before.max.ms": "how far in the past a timestamp may be",
    "message.timestamp.type": "`CreateTime`, or `LogAppendTime` for the clock of the log",
    "min.cleanable.dirty.ratio": "part of a log that must be new before it is compacted",
    "min.compaction.lag.ms": "age that a record must have before it may be compacted",
    "retention.bytes": "size of a partition above which its oldest segments expire",
    "retention.ms": "age at which segments expire",
    "seal.ms": "age at which the active segment is sealed and uploaded",
    "segment.bytes": "size at which a segment is sealed",
    "segment.index.bytes": "largest offset index",
    "segment.jitter.ms": "random part by which `segment.ms` is shorter",
    "segment.ms": "span of record times in one segment",
}
"""One sentence for each setting of a topic. Names and meanings are Kafka's, except those of the bucket."""


def python() -> str:
    """Return the public names, each for mkdocstrings."""
    modules = ("__version__", "admin", "aio", "errors", "uploader", "TieredError")
    objects = [f"tiered.{name}" for name in tiered.__all__ if name not in modules]
    objects += [f"tiered.admin.{name}" for name in tiered.admin.__all__]
    blocks = [f"::: {name}\n    options:\n      show_root_full_path: false\n" for name in objects]
    return "# Python API\n\n`tiered.aio` has the same names for asyncio. Errors: [Errors](errors.md).\n\n" + "\n".join(
        blocks
    )


def commands() -> str:
    """Return the commands of both programs, each for mkdocs-click."""
    found = [
        "# Commands",
        "Global options stand before or after the command. [Exit codes](../operations/exit-codes.md) are common to all.",
    ]
    for module, name, program in (
        ("tiered.cli.main", "tiered", "tiered"),
        ("uploader.cli", "program", "tiered-uploader"),
    ):
        lines = [
            f":module: {module}",
            f":command: {name}",
            f":prog_name: {program}",
            ":depth: 1",
            ":style: table",
            ":list_subcommands: True",
        ]
        found.append("::: mkdocs-click\n" + "".join(f"    {line}\n" for line in lines))
    return "\n\n".join(found)


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown. Bars in cells are escaped."""
    lines = [header, tuple("---" for _ in header), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(value: object) -> str:
    """Return a default as people write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value in (config.MAX_LONG, config.MAX_INT):
        return "no limit"
    return str(value)


def topic_settings() -> list[tuple[str, ...]]:
    """Return the settings of topics. Raises KeyError for one without a sentence."""
    fields = dataclasses.fields(config.TopicConfig)
    return [
        (f"`{name}`", shown(field.default), SENTENCES[name])
        for field in fields
        for name in [field.name.replace("_", ".")]
    ]


def uploader_settings() -> list[tuple[str, ...]]:
    """Return the settings of the daemon."""
    rows = []
    for each in settings.DAEMON:
        about = f"{each.help} ({each.kind})"
        flag = f"`{each.flag}`" if each.has_option else ""
        rows.append(
            (f"`{each.name}`", flag, f"`{each.variable}`", about, "SIGHUP" if each.name in RELOADABLE else "restart")
        )
    return rows


def settings_page() -> str:
    """Return all settings: of programs, topics, logs and the daemon."""
    programs = [
        (
            f"`{each.name}`",
            f"`{each.flag}`" if each.has_option else "",
            f"`{each.variable}`",
            f"{each.help} ({each.kind})",
        )
        for each in settings.SETTINGS
    ]
    log = [(f"`{field.name}`", shown(field.default)) for field in dataclasses.fields(config.LogConfig)]
    words = ("key in the file", "option", "variable", "meaning")
    return "\n".join(
        [
            "# Settings\n",
            "An option wins over the variable, the variable over the file, the file over the default. `tiered config` prints the source.",
            "The file is TOML, and `--config` or `TIERED_CONFIG` names it. Unknown keys are errors.\n",
            "## All programs\n",
            table(words, programs),
            "## The daemon: table `[uploader]`\n",
            table((*words, "a change needs"), uploader_settings()),
            "## Topics\n",
            "`tiered topic create --set NAME=VALUE`, or `config={...}` of `log.topic`. Sizes and times take units: `64MiB`, `7d`. -1 is no limit.\n",
            table(("setting", "default", "meaning"), topic_settings()),
            "## A log in a program\n",
            f"`tiered.open(..., config=LogConfig(...))` of `tiered.config`.\n\n{inspect.getdoc(config.LogConfig)}\n",
            table(("field", "default"), log),
        ]
    )


def metrics() -> str:
    """Return all metrics: those of a log from their table, those of the daemon as it prints them."""
    of_log = [
        (f"`{PREFIX}{name}`", "counter" if name.endswith("_total") else "gauge", about) for name, about in HELP.items()
    ]
    daemon = [(f"`{name}`", kind, about) for name, kind, about in daemon_metrics()]
    return "\n".join(
        [
            "# Metrics\n",
            "[Monitoring](../operations/monitoring.md) says which of them to watch. Labels: `topic` and `partition`, `op`, `status`, `log_dir`.\n",
            "## Of the daemon: `/metrics`\n",
            table(("name", "type", "meaning"), daemon),
            "## Of a log: `log.metrics()` and `tiered metrics`\n",
            "The daemon adds those of the directory's writer to its own.\n",
            table(("name", "type", "meaning"), of_log),
        ]
    )


def daemon_metrics() -> Iterator[tuple[str, str, str]]:
    """Yield name, type and text of each family that a daemon prints before it has done anything."""
    from tiered.store.metrics import StoreMetrics  # noqa: PLC0415
    from uploader.metrics import Metrics  # noqa: PLC0415

    registry = Metrics(StoreMetrics(), list).registry
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield name, family.type, family.documentation


def formats() -> str:
    """Return the drawings of the formats, from the modules that read and write them."""
    paths = sorted((ROOT / "tiered" / "format").glob("*.py"))
    drawn = [path.stem for path in paths if "::\n" in (ast.get_docstring(ast.parse(path.read_text())) or "")]
    blocks = [f"::: tiered.format.{name}\n    options:\n      members: false\n" for name in drawn]
    head = "# File and object formats\n\nFiles on disk are Kafka's, byte for byte. These texts are those of the modules that pack the bytes.\n"
    return head + "\n" + "\n".join(blocks)


# -- the JSON output, from commands that run over a small log ----------------------------------------------------------


def leaves(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command that has no commands below it."""
    if not isinstance(command, click.Group):
        yield words
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None and name != "spark":
            yield from leaves(found, (*words, name))


def schema_of(values: list[Any]) -> dict[str, Any]:
    """Return a JSON schema that all values fit."""
    kinds = sorted({kind_of(value) for value in values})
    found: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    objects = [value for value in values if isinstance(value, dict)]
    if objects:
        names = list(dict.fromkeys(name for value in objects for name in value))
        found["properties"] = {name: schema_of([value[name] for value in objects if name in value]) for name in names}
    items = [item for value in values if isinstance(value, list) for item in value]
    if items:
        found["items"] = schema_of(items)
    return found


def kind_of(value: object) -> str:
    """Return the name of a value's type in JSON schema."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def json_page() -> str:
    """Return a schema for what reading commands print with ``--json``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bucket = f"file://{folder / 'bucket'}"
        with tiered.open(folder / "data", remote=bucket) as log:
            log.topic("flights", partitions=1, create=True).append(b"on time", key=b"N14228")
            log.sync(timeout=60)
        parts = [
            JSON_HEAD,
            f"## An error\n\n```json\n{json.dumps(schema_of([errors.TieredError('why', hint='next').as_json()]), indent=2)}\n```\n",
        ]
        for words in leaves(tiered_command):
            both, alone = ["--log-dir", f"{folder / 'data'}", "--remote", bucket], ["--remote", bucket]
            lines = next(filter(None, (printed([*words, *place]) for place in (both, alone, both[:2]))), None)
            if lines is None:
                continue
            kinds = {
                line["message_type"]: [each for each in lines if each["message_type"] == line["message_type"]]
                for line in lines
            }
            bodies = [json.dumps(schema_of(each), indent=2) for each in kinds.values()]
            parts.append(f"## `tiered {' '.join(words)}`\n\n" + "\n".join(f"```json\n{body}\n```\n" for body in bodies))
    return "\n".join(parts)


JSON_HEAD = """# JSON output

With `--json` each line is an object with a `message_type`: `record`, `status`, `warning`, `error`, `finding` or `summary`. A command that prints many lines
ends with a `summary`, also when it fails. Fields are added, never removed. The schemas below are those of commands that look, over a small log.
"""


def printed(words: list[str]) -> list[dict[str, Any]]:
    """Return the JSON lines of a command that ended well with these words or with a topic; none otherwise."""
    for more in ([], ["flights"]):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = run_command(tiered_command, "tiered", [*words, *more, "--json"])
        if code in (0, 3) and out.getvalue().startswith('{"message_type"'):
            return [json.loads(line) for line in out.getvalue().splitlines()]
    return []


PAGES: dict[str, Callable[[], str]] = {
    "reference/python.md": python,
    "reference/commands.md": commands,
    "reference/settings.md": settings_page,
    "reference/metrics.md": metrics,
    "reference/errors.md": errors.as_markdown,
    "reference/json.md": json_page,
    "reference/formats.md": formats,
}


# -- hooks -------------------------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/."""
    for target, made in PAGES.items():
        files.append(File.generated(config, target, content=made()))
    for source, target in INCLUDED.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links of the site, or into text where the site lacks the file."""
    target = page.file.src_uri
    sources = {place: source for source, place in INCLUDED.items()}
    source = PurePosixPath(sources.get(target, f"docs/{target}"))

    def placed(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        if not link:
            return match[0]
        path = os.path.normpath(source.parent / link)
        found = INCLUDED.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if found is None:
            return text
        return f"[{text}]({os.path.relpath(found, PurePosixPath(target).parent)}{anchor})"

    return LINK.sub(placed, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Leave out the defaults of options that have none, which mkdocs-click shows as a name of click."""
    return html.replace("<code>Sentinel.UNSET</code>", "")
