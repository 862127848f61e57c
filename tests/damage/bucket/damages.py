"""The damages, each with what it may lead to where that is not the rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from tests.damage.bucket.place import HIT, OTHER, TPS, Place
from tiered.format.kernels import crc32c
from tiered.format.keys import hist_prefix, topic_key
from tiered.model import TopicPartition

RULE = {
    "check_bucket": {"finding", "error"},
    "check_with_disk": {"finding", "error"},
    "check_read_data": {"finding", "error"},
    "read": {"right", "error"},
    "read_by_time": {"right", "error"},
    "own_writer": {"right", "error"},
    "fresh_writer": {"right", "error"},
    "restored": {"right", "error"},
}
CHECKS = ("check_bucket", "check_with_disk", "check_read_data")


Lost = dict[TopicPartition, tuple[int, int]]
SEGMENT, TWO, BATCH = (5, 10), (5, 12), (5, 6)
"""Offsets of the damaged segment, of it and the one after it, and of its first batch."""


def of(offsets: tuple[int, int], *partitions: TopicPartition) -> Lost:
    return dict.fromkeys(partitions or (HIT,), offsets)


class Damage(NamedTuple):
    """``also``: outcomes beside the rule's, by action. ``only``: instead of the rule's.

    ``repaired``: False if nothing in the bucket proves the damage, or if it is refused or left. ``lost``: offsets that
    are gone after a repair where neither a version nor a log directory holds them.
    """

    name: str
    hurt: Callable[[Place], object]
    also: dict[str, set[str]] = {}  # noqa: RUF012 - never written to
    only: dict[str, set[str]] = {}  # noqa: RUF012 - never written to
    repaired: bool = True
    lost: Lost = {}  # noqa: RUF012 - never written to

    def allowed(self, action: str) -> set[str]:
        """What is right."""
        return self.only.get(action, RULE[action] | self.also.get(action, set()))


CLEAN: dict[str, set[str]] = {check: {"clean"} for check in CHECKS}
REFUSED = {"own_writer": {"error"}, "fresh_writer": {"error"}}
UNSEEN: dict[str, set[str]] = {
    action: {"fewer", "clean"} for action in ("read", "read_by_time", "restored", "check_bucket", "check_read_data")
}
"""A root that is older than all that the one who looks has ever seen."""


def flip(position: int, bit: int = 0x10) -> Callable[[bytearray], None]:
    """One bit."""

    def change(data: bytearray) -> None:
        data[position] ^= bit

    return change


def log(change: Callable[[bytearray], bytes | bytearray | None]) -> Callable[[Place], None]:
    return lambda place: place.edit(place.log_key(), change)


def idx(change: Callable[[bytearray], bytes | bytearray | None]) -> Callable[[Place], None]:
    return lambda place: place.edit(place.idx_key(), change)


def root(change: Callable[[bytearray], bytes | bytearray | None]) -> Callable[[Place], None]:
    return lambda place: place.edit(place.root_key(), change)


def header(fmt: int | None = None, **fields: Any) -> Callable[[Place], None]:
    return lambda place: place.edit_header(lambda found: found.update(fields), fmt)


def entry(data: bytes) -> Callable[[Place], None]:
    return lambda place: place.put(topic_key(HIT.topic), data)


def first_batch_end(data: bytes | bytearray) -> int:
    return 12 + int.from_bytes(data[8:12], "big")


def other_records(data: bytearray) -> None:
    """Other bytes in the value, the batch's CRC made right again."""
    data[first_batch_end(data) - 12] ^= 1
    end = first_batch_end(data)
    data[17:21] = crc32c(bytes(data[21:end])).to_bytes(4, "big")


def swap_segments(place: Place) -> None:
    place.swap(place.log_key(1), place.log_key(2))
    place.swap(place.idx_key(1), place.idx_key(2))


def swap_all(place: Place) -> None:
    place.swap(place.log_key(), place.log_key(tp=TPS[1]))
    place.swap(place.idx_key(), place.idx_key(tp=TPS[1]))


def delete_neighbours(place: Place) -> None:
    """Both objects of two segments, side by side."""
    place.delete(*(key(number) for number in (1, 2) for key in (place.log_key, place.idx_key)))


def exchange_ids(place: Place) -> None:
    """Each of two entries names the roots of the other."""
    entries = {name: json.loads(place.get(topic_key(name))) for name in (HIT.topic, OTHER)}
    ids = {name: entry["topic_id"] for name, entry in entries.items()}
    for name, other in ((HIT.topic, OTHER), (OTHER, HIT.topic)):
        place.put(topic_key(name), json.dumps(entries[name] | {"topic_id": ids[other]}).encode())


def delete_all_indexes(place: Place) -> None:
    place.delete(*(place.idx_key(number) for number in range(len(place.decoded().rows))))


def ends_as_another(place: Place) -> None:
    one, two = place.get(place.idx_key(1)), place.get(place.idx_key(2))
    place.put(place.idx_key(1), one[:-16] + two[-16:])
    place.put(place.idx_key(2), two[:-16] + one[-16:])


def without_copies(numbers: tuple[int, ...]) -> Callable[[Place], None]:
    """Nothing tells of some segments but their own batches."""

    def hurt(place: Place) -> None:
        gone = [place.idx_key(number) for number in numbers]
        folder = hist_prefix(place.topic_ids[HIT.topic], HIT.partition)
        place.delete(place.root_key(), *gone, *(key for key in place.every_key() if key.startswith(folder)))

    return hurt


def in_capitals(place: Place) -> None:
    """Somebody has copied a bucket by a system that does not tell them apart."""
    key = place.log_key()
    folder, _, name = key.rpartition("-")
    data = place.get(key)
    place.delete(key)
    place.put(f"{folder}-{name.removesuffix('.log').upper()}.log", data)


def strangers(place: Place) -> None:
    for key in ("readme.txt", "topics.bak/x", "b0/none", "zz/" + "0" * 32 + "-0/root", f"topics.old/{OTHER}"):
        place.put(key, b"somebody else's")


def odd_names(place: Place) -> None:
    """Keys that are nearly ours, below a partition and below ``topics/``, and another log below this one's prefix."""
    partition = place.root_key().removesuffix("root")
    uid = "0f" * 16
    nearly = (
        f"s/w00000001/{0:020d}-{uid.upper()}.log", f"s/wffffffff/{0:020d}-{uid}.log", f"s/w1/{0:020d}-{uid}.log",
        f"s/w00000001/{0:020d}-{uid}.log.bak", f"s/w00000001/{2**63:020d}-{uid}.idx", f"s/x00000001/{0:020d}-{uid}.log",
        "s/a b+c%2Fd\u20ac", "p/w00000001/none.page", "root.bak", "roots", "hist/zz", "pin/\U0001f600", "s", "ROOT",
    )  # fmt: skip
    for name in nearly:
        place.put(partition + name, b"somebody else's")
    for key in ("topics/a b", "topics/\u00fc", "topics/x/y", f"eu/topics/{HIT.topic}", f"eu/{place.root_key()}"):
        place.put(key, b"somebody else's")


DAMAGES = (
    Damage(
        ".log swapped between two partitions",
        lambda p: p.swap(p.log_key(), p.log_key(tp=TPS[1])),
        lost=of(SEGMENT, TPS[0], TPS[1]),
    ),
    Damage(".log and .idx swapped between two partitions", swap_all, lost=of(SEGMENT, TPS[0], TPS[1])),
    Damage(
        ".log swapped between two topics",
        lambda p: p.swap(p.log_key(), p.log_key(tp=TPS[2])),
        lost=of(SEGMENT, TPS[0], TPS[2]),
    ),
    Damage(".log swapped between two segments", lambda p: p.swap(p.log_key(1), p.log_key(2)), lost=of(TWO)),
    Damage(".log and .idx swapped between two segments", swap_segments, lost=of(TWO)),
    Damage(
        ".log gone, and its bytes under the name of another",
        lambda p: (p.swap(p.log_key(1), p.log_key(2)), p.delete(p.log_key(1))),
        lost=of(TWO),
    ),
    Damage(
        ".log is another segment of its partition", lambda p: p.put(p.log_key(), p.get(p.log_key(2))), lost=of(SEGMENT)
    ),
    Damage(".log of the same shape, other records, right batch CRCs", log(other_records), lost=of(SEGMENT)),
    Damage(".log truncated in a batch", log(lambda data: data[:-7]), lost=of(SEGMENT)),
    Damage(".log truncated at a batch border", log(lambda data: data[: first_batch_end(data)]), lost=of(SEGMENT)),
    Damage(".log with bytes appended", log(lambda data: data + b"\0" * 40)),
    Damage(".log empty", log(lambda data: b""), lost=of(SEGMENT)),
    Damage(".log gone", lambda p: p.delete(p.log_key()), lost=of(SEGMENT)),
    Damage("first .log gone", lambda p: p.delete(p.log_key(0)), lost=of((0, 5))),
    Damage("last .log gone", lambda p: p.delete(p.log_key(-1)), lost=of((22, 24))),
    Damage(".log: a bit of a record", log(flip(80)), lost=of(BATCH)),
    Damage(".log: a bit of a base offset", log(flip(7, 1)), lost=of(BATCH)),
    Damage(".log: a high bit of a base offset", log(flip(0, 1)), lost=of(BATCH)),
    Damage(".log: a bit of a batch length", log(flip(11)), lost=of(BATCH)),
    Damage(".log: a high bit of a batch length", log(flip(8, 0x40)), lost=of(BATCH)),
    Damage(".log: a bit of a leader epoch", log(flip(15, 1)), lost=of(BATCH)),
    Damage(".log: a bit of the magic", log(flip(16, 1)), lost=of(BATCH)),
    Damage(".log: a bit of a CRC", log(flip(18, 1)), lost=of(BATCH)),
    Damage(".log: a bit of the record count", log(flip(60, 1)), lost=of(BATCH)),
    Damage(".log zeroed", log(lambda data: bytes(len(data))), lost=of(SEGMENT)),
    Damage(".log and .idx of two neighbours gone", delete_neighbours, lost=of(TWO)),
    Damage(".idx gone", lambda p: p.delete(p.idx_key())),
    Damage("all .idx gone", delete_all_indexes),
    Damage("last .idx gone", lambda p: p.delete(p.idx_key(-1))),
    Damage(".idx empty", idx(lambda data: b"")),
    Damage(".idx truncated", idx(lambda data: data[: len(data) // 2])),
    Damage(".idx of another segment", lambda p: p.put(p.idx_key(), p.get(p.idx_key(2)))),
    Damage(".idx of another partition", lambda p: p.put(p.idx_key(), p.get(p.idx_key(tp=TPS[1])))),
    Damage(".idx swapped between two segments", lambda p: p.swap(p.idx_key(1), p.idx_key(2))),
    Damage(".idx ends as that of another segment", ends_as_another),
    Damage(".log and .idx empty", lambda p: (p.put(p.log_key(), b""), p.put(p.idx_key(), b"")), lost=of(SEGMENT)),
    Damage(".log named in capitals", in_capitals, lost=of(SEGMENT)),
    Damage("roots of two partitions swapped", lambda p: p.swap(p.root_key(), p.root_key(TPS[1]))),
    Damage("root and topic entry gone", lambda p: p.delete(p.root_key(), topic_key(HIT.topic))),
    Damage(".idx: a bit of a section", idx(flip(-30))),
    Damage(".idx: a bit of the head", idx(flip(9))),
    Damage(".idx: a section of 4 GB", idx(lambda data: data[:24] + b"\xff" * 4 + data[28:])),
    Damage(
        "root older",
        lambda p: p.put(p.root_key(), p.older[HIT]),
        {**UNSEEN, "fresh_writer": {"differs"}},
        {"own_writer": {"error"}},
        repaired=False,
    ),
    Damage("root gone", lambda p: p.delete(p.root_key())),
    Damage("root, its copies and an .idx gone", without_copies((1,)), repaired=False),
    Damage("root, its copies and three .idx gone", without_copies((0, 2, 3)), repaired=False),
    Damage("root empty", root(lambda data: b"")),
    Damage("root truncated", root(lambda data: data[:-9])),
    Damage("root: a bit", root(flip(60))),
    Damage("root of the other partition", lambda p: p.put(p.root_key(), p.get(p.root_key(TPS[1])))),
    Damage("root of another topic", lambda p: p.put(p.root_key(), p.get(p.root_key(TPS[2])))),
    Damage("root of a newer format", header(fmt=9), {}, REFUSED, repaired=False),
    Damage("root with an unknown field", header(later=["later"]), CLEAN, repaired=False),
    Damage("root state deleting", lambda p: p.edit_root(state="deleting"), CLEAN, REFUSED, repaired=False),
    Damage("topic entry gone", lambda p: p.delete(topic_key(HIT.topic))),
    Damage("topic entry empty", entry(b"")),
    Damage("topic entry is no JSON", entry(b"{nothing")),
    Damage("topic entry of another topic", lambda p: p.put(topic_key(HIT.topic), p.get(topic_key(OTHER)))),
    Damage("topic entry with another id", lambda p: p.edit_entry(topic_id=UUID(int=5).hex)),
    Damage("topic entry with 2,000,000 partitions", lambda p: p.edit_entry(partitions=2_000_000)),
    Damage("topic entry with 0 partitions", lambda p: p.edit_entry(partitions=0)),
    Damage("topic entry with 1 partition of 2", lambda p: p.edit_entry(partitions=1)),
    Damage("topic entry of 1 MB", lambda p: p.edit_entry(config={"x": "y" * (1 << 20)})),
    Damage("topic entry of a newer format", lambda p: p.edit_entry(format=2), repaired=False),
    Damage("topic entry says deleted", lambda p: p.edit_entry(state="deleted"), repaired=False),
    Damage(
        "topic entry says that it is being deleted",
        lambda p: p.edit_entry(state="deleting"),
        {"restored": {"fewer"}},  # it is passed over, which the report says
        repaired=False,
    ),
    Damage("topic entries with each other's ids", exchange_ids, repaired=False),
    Damage("strangers with odd names", strangers, CLEAN, repaired=False),
    Damage("strangers with names that are nearly ours", odd_names, CLEAN, repaired=False),
)
