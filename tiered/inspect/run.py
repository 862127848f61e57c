"""One run of ``inspect``: all files in turn. A damaged file does not stop the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tiered.check.findings import Findings, Severity
from tiered.check.inspection import PADDING
from tiered.errors import CorruptionError, TieredError
from tiered.format.keys import (
    INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
)
from tiered.inspect.content import Content, layouts_for
from tiered.inspect.items import BatchItem, BatchWindow, Item, Tail, log_items
from tiered.inspect.small_files import base_of, check_name, is_log, small_items, suffix_of, whole
from tiered.inspect.targets import expanded, holding, may_grow, opened
from tiered.inspect.verify import (
    sanity_error,
    segment_of,
    verify_segment,
)
from tiered.model import ByteSource
from tiered.program.application import Application
from tiered.program.output import counted

EXIT_CORRUPTION = CorruptionError.exit_code
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Options of a run. ``decoder``: of whole records; ``content`` has no layouts yet: the topic decides them."""

    content: Content
    window: BatchWindow
    decoder: str = "auto"
    verify: bool = False
    verify_only: bool = False
    sanity: bool = False


class DumpRun:
    """Dump of one command's files. Not thread-safe."""

    def __init__(self, app: Application, wanted: DumpOptions) -> None:
        self._app = app
        self._wanted = wanted
        self._verified: set[str] = set()
        self._refused: list[TieredError] = []
        self._staged: dict[str, int] = {}
        self.files = 0
        self.damage = 0

    def dump(self, name: str, *, is_only: bool) -> None:
        """Dump all files that ``name`` means. Raise the error of an ``is_only`` file, print others as warnings."""
        unlisted: list[TieredError] = []
        self._staged = {}
        try:
            files = expanded(self._app, name, unlisted, staged=self._staged)
        except TieredError as error:
            self._refuse(error, alone=is_only)
            return
        for folder in unlisted:
            self._refuse(folder, alone=False)
        window = self._wanted.window
        if window.offset is not None and not self._wanted.verify:
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
        """Print the summary. Return the exit code. Raise the error of a file that could not be inspected."""
        out = self._app.out
        out.summary_fields.update(files=self.files, findings=self.damage)
        if self._refused and not self.damage:
            first = self._refused[0]
            if len(self._refused) > 1:
                first.message = f"{len(self._refused)} could not be inspected; the first: {first.message}"
            raise first
        code = EXIT_CORRUPTION if self.damage else 0
        out.summary(code)
        if self.damage:
            where = f"{counted(self.damage, 'finding')} in {counted(self.files, 'file')}"
            out.say(f"{where}; `tiered check` looks at whole logs")
        return code

    def _file(self, name: str, source: ByteSource) -> None:
        out, wanted, short = self._app.out, self._wanted, name.rsplit("/", 1)[-1]
        suffix = suffix_of(short)
        check_name(short)
        if wanted.sanity and suffix in _INDEXES:
            self._sanity(name, suffix, whole(short, source))
            return
        shown = not wanted.verify_only
        if shown and not out.json_mode:
            base = self._staged.get(name, 0)
            its_own = f"; of a sink: its offset 0 is {base} of the log" if base else ""
            out.line(f"{name}  {counted(source.size, 'byte')}{its_own}")
        if shown or suffix not in SEGMENT_SUFFIXES:
            for item in self._items(name, short, source):
                self._item(name, item, shown=shown)
        if wanted.verify and suffix in SEGMENT_SUFFIXES:
            self._verify(name, source)

    def _items(self, name: str, short: str, source: ByteSource) -> Iterator[Item]:
        wanted = self._wanted
        if is_log(short):
            directory = Path(name).absolute().parent.name if "://" not in name else ""
            content = replace(wanted.content, layouts=layouts_for(wanted.decoder, directory))
            window = replace(wanted.window, offset=max(0, wanted.window.start - self._staged.get(name, 0)))
            return log_items(short, source, window, content)
        return small_items(short, source, start=wanted.window.start)

    def _item(self, name: str, item: Item, *, shown: bool) -> None:
        out, wanted = self._app.out, self._wanted
        if isinstance(item, BatchItem) and not wanted.verify:
            self.damage += not item.valid
        if isinstance(item, Tail):
            # A verification says the same, with all else that it finds.
            if not wanted.verify or suffix_of(item.name) not in SEGMENT_SUFFIXES:
                self._tail(name, item)
        elif shown and out.json_mode:
            out.message(item.kind, file=name, **item.fields())
        elif shown:
            out.line(item.text())

    def _tail(self, name: str, tail: Tail) -> None:
        if not (tail.zeros and may_grow(name)):
            self._damaged(name, CorruptionError(tail.text(), position=tail.position), code="log_torn")
            return
        findings = Findings(name)
        findings.add(Severity.INFO, "log_torn", tail.text() + PADDING, position=tail.position)
        self._print(findings)

    def _sanity(self, name: str, suffix: str, data: bytes) -> None:
        wrong = sanity_error(suffix, data, base_of(name))
        if wrong:
            self._damaged(name, CorruptionError(f"the index is not sane: {wrong}"), code="index_sanity")
        elif self._app.out.json_mode:
            self._app.out.message("sane", file=name)
        else:
            self._app.out.line(f"{name} passed sanity check.")

    def _verify(self, name: str, source: ByteSource) -> None:
        segment = segment_of(name)
        if segment in self._verified:
            return
        self._verified.add(segment)
        findings, scan = verify_segment(name, source)
        self._print(findings)
        errors = sum(1 for item in findings.items if item.severity is Severity.ERROR)
        self.damage += errors
        if scan is None:
            return
        out = self._app.out
        fields = {
            "batches": scan.batches,
            "records": scan.records,
            "valid_bytes": scan.valid_bytes,
            "size_bytes": scan.size_bytes,
            "end_offset": scan.end_offset,
            "findings": errors,
        }
        if out.json_mode:
            out.message("verified", file=findings.where, **fields)
        else:
            batches = f"{scan.batches:,} {'batch' if scan.batches == 1 else 'batches'}"
            what = f"{batches}, {counted(scan.records, 'record')}"
            out.line(f"{findings.where}: {what}, {counted(errors, 'finding')}")

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
