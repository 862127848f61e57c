"""The journal of uploads: durable names, a torn line, its size, and a disk without handles."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles
from tests.unit.engine.world import tp
from tiered.engine.journal import COMPACT_LINES, Entry, Journal
from tiered.errors import ClosedError, LocalIOError
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import JOURNAL_NAME

FILES = PosixFiles()


def entry(base: int, epoch: int = 1, name: str = "k") -> Entry:
    return Entry(tp(0), epoch, base, f"{name}{base}.log", f"{name}{base}.idx")


def test_the_journal_survives_a_torn_line_and_forgets_what_is_done(tmp_path: Path) -> None:
    journal = Journal(tmp_path, FILES)
    journal.put(entry(0))
    journal.put(entry(10))
    journal.part("k10.log", "u1")
    journal.part("k10.log", "u2")
    journal.done(["k0.log", "unknown"])
    journal.close()
    path = tmp_path / JOURNAL_NAME
    path.write_bytes(path.read_bytes() + b'not json\n{"op":"put","topic":"t","par')
    again = Journal(tmp_path, FILES)
    assert again.skipped_lines == 1
    (left,) = again.before(tp(0), 2)
    assert (left.base, left.upload_ids) == (10, ("u1", "u2"))
    assert again.before(tp(0), 1) == []
    assert again.before(tp(1), 9) == []
    again.put(entry(20))
    again.close()
    assert [one.base for one in Journal(tmp_path, FILES).between(tp(0), 0, 21)] == [10, 20]


def test_what_the_journal_announces_is_durable_at_once(tmp_path: Path) -> None:
    """Before the first byte of an upload: a name that is forgotten is litter that nobody looks for."""
    files = FaultyFiles()
    journal = Journal(tmp_path, files)
    for announce, expected in (
        (lambda: journal.put(entry(0)), ["write", "sync"]),
        (lambda: journal.part("k0.log", "u1"), ["write", "sync"]),
        (lambda: journal.done(["k0.log"]), ["write"]),
    ):
        files.effects.clear()
        announce()
        assert files.effects == [(name, tmp_path / JOURNAL_NAME) for name in expected]
    journal.close()


def test_the_journal_does_not_grow_without_bound(tmp_path: Path) -> None:
    journal = Journal(tmp_path, FILES)
    journal.put(entry(7, name="stays"))
    for base in range(COMPACT_LINES):
        journal._append([], sync=False)
        journal._put(entry(base))
        journal._lines += 1
        journal.done([f"k{base}.log"])
    assert len((tmp_path / JOURNAL_NAME).read_bytes().splitlines()) < COMPACT_LINES
    journal.close()
    assert [one.log_key for one in Journal(tmp_path, FILES).before(tp(0), 2)] == ["stays7.log"]


def test_the_journal_is_opened_again_where_no_handle_was_left(tmp_path: Path) -> None:
    """Another process has uploaded the directory meanwhile, and while the journal is rewritten."""
    none_left = False
    opening = ("open", JOURNAL_NAME)
    files = FaultyFiles(lambda what, path: errno.EMFILE if none_left and (what, path.name) == opening else 0)
    journal = Journal(tmp_path, files)
    journal.put(entry(0))
    with_others = Journal(tmp_path, FILES)
    with_others.put(entry(10))
    with_others.close()
    none_left = True
    for _ in range(2):
        with pytest.raises(LocalIOError):
            journal.refresh()
    none_left = False
    journal.refresh()
    assert [one.base for one in journal.before(tp(0), 2)] == [0, 10]
    journal._lines = 2 * COMPACT_LINES
    none_left = True
    with pytest.raises(LocalIOError):
        journal.done(["k0.log"])
    with pytest.raises(LocalIOError):
        journal.put(entry(20))
    none_left = False
    journal.put(entry(30))
    for found in (journal, Journal(tmp_path, FILES)):
        assert [one.base for one in found.before(tp(0), 2)] == [10, 30]
        found.close()
    with pytest.raises(ClosedError):
        journal.put(entry(40))
