"""One run of ``inspect``: all files in turn. A damaged file does not stop the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tiered.check.findings import Findings, Severity
from tiered.check.inspection import PADDING
from tiered.errors import CorruptionError, TieredError
from tiered.inspect.content import Content, layouts_for
from tiered.inspect.items import BatchItem, BatchWindow, Item, Tail, log_items
from tiered.inspect.small_files import check_name, is_log, small_items
from tiered.inspect.targets import expanded, holding, may_grow, opened
from tiered.model import ByteSource
from tiered.program.application import Application
from tiered.program.output import counted

EXIT_CORRUPTION = CorruptionError.exit_code


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Options of a run. ``decoder``: of whole records; ``content`` has no layouts yet: the topic decides them."""

    content: Content
    window: BatchWindow
    decoder: str = "auto"


class DumpRun:
    """Dump of one command's files. Not thread-safe."""

    def __init__(self, app: Application, wanted: DumpOptions) -> None:
        self._app = app
        self._wanted = wanted
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
        out, short = self._app.out, name.rsplit("/", 1)[-1]
        check_name(short)
        if not out.json_mode:
            base = self._staged.get(name, 0)
            its_own = f"; of a sink: its offset 0 is {base} of the log" if base else ""
            out.line(f"{name}  {counted(source.size, 'byte')}{its_own}")
        for item in self._items(name, short, source):
            self._item(name, item)

    def _items(self, name: str, short: str, source: ByteSource) -> Iterator[Item]:
        wanted = self._wanted
        if is_log(short):
            directory = Path(name).absolute().parent.name if "://" not in name else ""
            content = replace(wanted.content, layouts=layouts_for(wanted.decoder, directory))
            window = replace(wanted.window, offset=max(0, wanted.window.start - self._staged.get(name, 0)))
            return log_items(short, source, window, content)
        return small_items(short, source, start=wanted.window.start)

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
