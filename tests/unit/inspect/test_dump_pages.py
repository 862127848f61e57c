"""Pages of a catalog as ``inspect`` shows them: what is printed is all that is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cli.conftest import Cli
from tests.unit.format.catalog.building import TOPIC_ID, leaf_pages, make_root, make_rows, name, page_of
from tiered.errors import CorruptionError
from tiered.format.keys import Role, page_key, parse_page_key, split_uid
from tiered.format.page import POINTER_MAINTAINER, Content, Page, Pointer, Pointers, encode_page
from tiered.format.root import encode_root
from tiered.format.rows import Rows, Trash
from tiered.inspect.small_files import small_items
from tiered.model import TRASH_MAINTAINER, BytesSource, Row, TrashEntry

KINDS = ["segment", "page and all below", "rows of a leaf", "page", "page of trash"]
NUMBERS = st.integers(-(2**63), 2**63 - 1)
NARROW = st.integers(0, 2**31 - 1)
ROWS = st.builds(
    Row, *[NUMBERS] * 8, *[NARROW] * 4, st.integers(-1, 2**31 - 1), reserved=st.just(0), appended_ms=NUMBERS
)  # any numbers: a page that is damaged is what somebody looks at
POINTERS = st.builds(
    Pointer, *[NUMBERS] * 11, NARROW, NARROW, NARROW, st.sampled_from([0, POINTER_MAINTAINER]), NARROW, NARROW
)
TRASH = st.builds(
    TrashEntry,
    *[NUMBERS] * 5,
    NARROW,
    st.sampled_from([k | f for k in range(5) for f in (0, TRASH_MAINTAINER)]),
    NUMBERS,
)


def back(kind: str, entry: dict[str, Any]) -> Row | Pointer | TrashEntry:
    """The entry that was printed as ``entry``."""
    if kind == "row":
        high, low = split_uid(entry.pop("uid"))
        return Row(id_hi=high, id_lo=low, **entry)
    if kind == "leaf_page":
        parsed = parse_page_key(entry.pop("key"))
        assert parsed is not None
        high, low = split_uid(parsed.name.uid)
        flags = POINTER_MAINTAINER if parsed.name.role is Role.MAINTAINER else 0
        sum_hi, sum_lo = split_uid(entry.pop("sum"))
        return Pointer(
            id_hi=high, id_lo=low, sum_hi=sum_hi, sum_lo=sum_lo, epoch=parsed.name.epoch, flags=flags, **entry
        )
    assert kind == "trash"
    high, low = split_uid(entry.pop("uid"))
    letter = TRASH_MAINTAINER if entry.pop("role") == "m" else 0
    return TrashEntry(id_hi=high, id_lo=low, kind=KINDS.index(entry.pop("what")) | letter, **entry)


def shown(page: Page) -> tuple[dict[str, Any], Content]:
    """The heading, and the content made again of what is printed for machines."""
    heading, *entries = small_items(page.key.rsplit("/", 1)[-1], BytesSource(page.body))
    for entry in (heading, *entries):
        for field, value in entry.fields().items():
            assert field in {"kind", "what"} or f"{field} {value}" in entry.text()
    made = [back(entry.kind, dict(entry.fields())) for entry in entries]
    match page.content:
        case Rows():
            return dict(heading.fields()), Rows.from_rows([row for row in made if isinstance(row, Row)])
        case Pointers():
            return dict(heading.fields()), Pointers.from_pointers([one for one in made if isinstance(one, Pointer)])
        case Trash():
            return dict(heading.fields()), Trash.from_entries([one for one in made if isinstance(one, TrashEntry)])


@settings(deadline=None)
@given(
    st.one_of(
        st.lists(ROWS, min_size=1, max_size=4).map(Rows.from_rows),
        st.lists(POINTERS, min_size=1, max_size=4).map(Pointers.from_pointers),
        st.lists(TRASH, min_size=1, max_size=4).map(Trash.from_entries),
    ),
    st.sampled_from(list(Role)),
)
def test_what_is_printed_is_what_the_page_holds(content: Content, role: Role) -> None:
    page = encode_page(TOPIC_ID, 3, name(7, role), content)
    heading, made = shown(page)
    assert made == content
    assert (heading["kind"], heading["entries"]) == (page.kind.value, len(content))
    assert (heading["topic_id"], heading["partition"]) == (str(TOPIC_ID), 3)
    assert page_key(TOPIC_ID, 3, name(7, role)).endswith(
        f"/{heading['role']}{heading['epoch']:08x}/{heading['uid']}.page"
    )


def test_a_page_and_a_root_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    page = page_of(Pointers.from_pointers([leaf.pointer for leaf in leaf_pages(3)]))
    path = tmp_path / f"{page.key.rsplit('/', 1)[-1]}"
    path.write_bytes(page.body)
    messages = cli("inspect", path, "--json").messages
    assert [each["message_type"] for each in messages] == ["page", "leaf_page", "leaf_page", "leaf_page", "summary"]
    assert messages[1]["key"] == leaf_pages(3)[0].key
    assert "inner page topic_id" in cli("inspect", path).text
    (tmp_path / "root").write_bytes(encode_root(make_root(make_rows(2))))
    root = cli("inspect", tmp_path / "root", "--json").messages
    assert [each["message_type"] for each in root] == ["root", "row", "row", "trash", "summary"]
    assert (root[3]["what"], root[3]["removed_version"]) == ("segment", 8)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda body: body[:-1], "checksum"),
        (lambda body: body[:40] + b"?" + body[41:], "checksum"),
        (lambda _: encode_root(make_root(make_rows(1))), "kind"),
    ],
)
def test_what_is_no_page_is_damage(damage: Any, told: str) -> None:
    page = page_of(make_rows(2))
    file = page.key.rsplit("/", 1)[-1]
    with pytest.raises(CorruptionError, match=told) as raised:
        list(small_items(file, BytesSource(damage(page.body))))
    assert raised.value.path_or_key == file
