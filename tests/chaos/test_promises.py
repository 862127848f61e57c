"""The ledger and the readers of the chaos object to what they are there for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cast import Host, Violation
from tests.chaos.ledger import check_host, check_once, check_seen
from tests.chaos.notes import Notes
from tests.chaos.reader import Seen
from tests.chaos.topics import Held, Kind

OLD, NEW, OTHER = Held("a", "k1"), Held("b", "k1"), Held("c", "k2")


def host(folder: Path, topic: str) -> Host:
    return Host.make(folder, "s3://b", "http://h", topic, "inline", 1, 0)


@contextlib.contextmanager
def noted(path: Path) -> Iterator[Notes]:
    with contextlib.closing(Notes(path)) as notes:
        yield notes


@pytest.mark.parametrize(
    ("topic", "records", "broken"),
    [
        ("newest", {3: OLD, 5: NEW}, ""),
        ("newest", {5: NEW}, ""),
        ("newest", {5: NEW, 7: Held("later", "k2")}, ""),
        ("newest", {3: OLD}, "at 5, where nothing is"),
        ("newest", {3: OLD, 5: OLD}, "at 5, where a is"),
        ("newest", {4: Held("stranger", "k1")}, "at 5, where nothing is"),
        ("alone", {3: OLD, 5: NEW}, ""),
        ("alone", {5: NEW}, "at 3, where nothing is"),
    ],
)
def test_the_last_value_of_a_key_is_there_of_a_compacted_topic(
    topic: str, records: dict[int, Held], broken: str, tmp_path: Path
) -> None:
    one = host(tmp_path, topic)
    with noted(one.notes) as notes:
        for offset, held in ((3, OLD), (5, NEW)):
            notes.add("disk", partition=0, offset=offset, names=[held.name], keys=[held.key])
    content = {(topic, 0): records}
    if not broken:
        assert check_host(one, content, displaced=False) == 2
        return
    with pytest.raises(Violation, match=broken):
        check_host(one, content, displaced=False)


@pytest.mark.parametrize(
    ("names", "displaced", "broken"),
    [
        (["yes1", "yes2"], False, ""),
        (["yes1", "yes2", "maybe1", "maybe2"], False, ""),
        (["yes1"], False, "yes2"),
        (["yes1", "yes2", "maybe1"], False, "only"),
        (["yes1", "yes2", "maybe1"], True, ""),
        (["yes1", "yes2", "no1"], True, "were aborted"),
        ([], True, "yes1"),
    ],
)
def test_only_and_all_committed_records(names: list[str], displaced: bool, broken: str, tmp_path: Path) -> None:
    one = host(tmp_path, "decided")
    at = {name: offset for offset, name in enumerate(("yes1", "yes2", "no1", "maybe1", "maybe2", "late"))}
    with noted(one.notes) as notes:
        for kind in ("yes", "no", "maybe"):
            notes.add("begun", transaction=kind, names=[name for name in at if name.startswith(kind)])
        notes.add("committed", transaction="yes", places=[[0, 0], [0, 1]])
        notes.add("aborted", transaction="no")
        notes.add("bucket", partition=0, end=4)
        notes.add("bucket", partition=1, end=9)
        if displaced:  # it was told nothing of this one
            notes.add("begun", transaction="late", names=["late"])
            notes.add("committed", transaction="late", places=[[0, 5]])
    content = {("decided", 0): {at[name]: Held(name, "") for name in names}, ("decided", 1): {}}
    if not broken:
        assert check_host(one, content, displaced=displaced) == 2
        return
    with pytest.raises(Violation, match=broken):
        check_host(one, content, displaced=displaced)


def test_what_was_seen_and_what_comes_twice(tmp_path: Path) -> None:
    with noted(tmp_path / "reader-1.notes") as notes:
        notes.add("seen", topic="alone", partition=0, offset=1, name="a", key="")
    content = {("alone", 0): {1: Held("a", "")}}
    assert (check_seen([tmp_path / "reader-1.notes"], content), check_once(content)) == (1, 1)
    with pytest.raises(Violation, match="was seen"):
        check_seen([tmp_path / "reader-1.notes"], {("alone", 0): {}})
    with pytest.raises(Violation, match="a is at"):
        check_once({("alone", 0): {1: Held("a", ""), 2: Held("a", "")}})


def seen(kind: Kind) -> Seen:
    one = Seen("t-0", kind)
    for offset, held in ((3, OLD), (5, NEW), (8, OTHER)):
        assert one.take(3, offset, held)
    return one


def test_a_reader_of_a_compacted_topic() -> None:
    one = seen(Kind.COMPACTED)
    assert not one.take(0, 5, NEW)
    one.passed(0, {5: NEW, 8: OTHER})
    one.passed(6, {8: OTHER})
    for found in ({3: OLD, 8: OTHER}, {5: NEW}):
        with pytest.raises(AssertionError, match="nothing more of"):
            one.passed(0, found)
    for offset, held in ((4, Held("back", "k1")), (5, OLD), (3, NEW)):
        with pytest.raises(AssertionError, match="seen there"):
            one.take(0, offset, held)


def test_a_reader_of_transactions() -> None:
    one = seen(Kind.TRANSACTIONAL)
    one.passed(4, {5: NEW, 8: OTHER})
    with pytest.raises(AssertionError, match="nothing more of"):
        one.passed(3, {5: NEW, 8: OTHER})
    with pytest.raises(AssertionError, match="seen there"):
        one.take(0, 4, Held("later decided", ""))


def test_a_reader_of_a_plain_topic() -> None:
    one = Seen("t-0", Kind.PLAIN)
    assert one.take(0, 0, OLD)
    with pytest.raises(AssertionError, match="expected 1"):
        one.take(1, 2, NEW)
