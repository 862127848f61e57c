"""A root that is whole and names pages that are gone or are not what it says: what is known without them.

What a page held is told by its pointer only as sums. The segments of its offsets are in the bucket, and their bundles
describe them: rows that add up to the pointer's sums are those of the page (``care.rebuild``). Of a page with no byte
of any segment all rows were holes: nothing is lost with it, and what still lies there had been compacted away.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tiered.errors import CorruptionError
from tiered.format.keys import join_uid
from tiered.format.page import NO_POINTERS, PageKind, Pointer, Pointers
from tiered.format.root import Root
from tiered.format.rows import Rows, Trash
from tiered.format.trash import TRASH_LIST, TRASH_OBJECT
from tiered.model import Row, TopicPartition
from tiered.remote.collect import page_key_of, trash_page
from tiered.remote.pages import PageCache, read_pages
from tiered.remote.rewrite import hole
from tiered.store.base import NewId, Steps


@dataclass(frozen=True, slots=True)
class Torn:
    """``root`` without the pages that cannot be read. ``lost``: their pointers.

    ``rows``: of the others, in order, and a hole for each lost page of holes.
    """

    root: Root
    rows: tuple[Row, ...]
    lost: tuple[Pointer, ...]

    def covers(self, offset: int) -> bool:
        """Whether the row of an offset was in a page that is lost."""
        return any(pointer.base <= offset < pointer.next for pointer in self.lost if pointer.size)

    def named(self) -> Steps[set[str]]:
        """By uid the segments that a page or a row which can be read names, and those that were replaced since."""
        named = {join_uid(row.id_hi, row.id_lo) for row in self.rows}
        waiting = list(self.root.trash)
        while waiting:
            entry = waiting.pop()
            if entry.what == TRASH_OBJECT:
                named.add(join_uid(entry.id_hi, entry.id_lo))
            elif entry.what == TRASH_LIST:
                content = yield from trash_page(page_key_of(self.root, entry), [PageKind.TRASH])
                waiting += list(content) if isinstance(content, Trash) else []
        return named

    def is_filled_by(self, rows: Sequence[Row]) -> bool:
        """Whether ``rows``, in order, leave no offset of the log out."""
        at = self.root.start_offset
        for row in rows:
            if row.base > at:
                return False
            at = row.next
        return at >= self.root.next_offset

    def need_same(self, tp: TopicPartition, rows: Sequence[Row], bare: Collection[str] = ()) -> None:
        """Raises CorruptionError unless ``rows`` are, in each page that is lost, those that it held.

        Of a page that a trim has cut nobody knows: what is below the start may be collected. ``bare``: by uid those of
        which only the length of their bundle is not known, which the page's sum of rows holds, too.
        """
        if rows[0].base > self.root.start_offset:
            raise CorruptionError(
                f"{tp}: offsets {self.root.start_offset} to {rows[0].base} are in no object",
                path_or_key=self.root.key,
                offset=self.root.start_offset,
                hint="nothing was changed; put the page back from a version or a backup of the bucket",
            )
        for pointer in self.lost:
            if not pointer.size or pointer.base < self.root.start_offset:
                continue
            held = [row for row in rows if pointer.base <= row.base < pointer.next]
            if not _is_page(pointer, held, bare):
                key = self.root.page_key(pointer)
                raise CorruptionError(
                    f"{tp}: the objects of offsets {pointer.base} to {pointer.next} are {len(held)} segments, and not "
                    f"the {pointer.rows} that the lost page {key} named",
                    path_or_key=key,
                    offset=pointer.base,
                    hint="nothing was changed; put the page back from a version or a backup of the bucket",
                )

    def adds_up(self, rows: Sequence[Row]) -> bool:
        """Whether ``rows``, in order, are the log, and all that each page held that is lost: never where a trim cut
        one."""
        return self.is_filled_by(rows) and all(
            _is_page(pointer, [row for row in rows if pointer.base <= row.base < pointer.next], ())
            for pointer in self.lost
            if pointer.size
        )


def _is_page(pointer: Pointer, held: Sequence[Row], bare: Collection[str]) -> bool:
    """Whether rows are those of a page, by what its pointer adds up to."""
    tally, expected = Rows.from_rows(held).tally, Pointers.of([pointer]).tally
    if any(join_uid(row.id_hi, row.id_lo) in bare for row in held):
        tally = replace(tally, sum=expected.sum)
    return tally == expected


def find_torn(root: Root) -> Steps[Torn | None]:
    """Reads every page of the catalog that holds anything above the start. None if all can be read."""
    cache, lost, leaves, rows = PageCache(), list[Pointer](), list[Pointer](), list[Row]()
    for pointer in root.inner:
        children = yield from _content(root, PageKind.INNER, pointer, cache)
        if isinstance(children, Pointers):
            leaves += list(children)
        elif pointer.next > root.start_offset:
            lost.append(pointer)
    whole = list[Pointer]()
    for pointer in (*leaves, *root.leaves):
        if pointer.next <= root.start_offset:
            continue
        held = yield from _content(root, PageKind.LEAF, pointer, cache)
        if isinstance(held, Rows):
            whole.append(pointer)
            rows += [row for row in held if row.next > root.start_offset]
        else:
            lost.append(pointer)
    if not lost:
        return None
    rows += list(root.rows)
    for pointer in lost:
        if not pointer.size:
            rows.append(hole(pointer.base, pointer.next, (yield NewId()), 1, pointer.leader_epoch))
    rows.sort()
    return Torn(replace(root, inner=NO_POINTERS, leaves=Pointers.of(whole)), tuple(rows), tuple(lost))


def _content(root: Root, kind: PageKind, pointer: Pointer, cache: PageCache) -> Steps[object]:
    try:
        (found,) = yield from read_pages(root, kind, (pointer,), cache)
    except CorruptionError:
        return None
    return found
