"""What users do with a bucket, and how it went: right, an error of the tree, a finding, or what must not be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.damage.bucket.place import RECORDS, SINCE, TOPIC, TPS, Hang, Place, value
from tests.sim.tiers.truth import values_of
from tests.support.admin import check, restore
from tiered.check.check import CheckOptions
from tiered.check.findings import Severity
from tiered.errors import TieredError
from tiered.model import TopicPartition
from tiered.read.bucket import BucketReads
from tiered.reader import Reader
from tiered.store.options import StoreOptions
from tiered.testing.clock import START_MS

Values = dict[int, bytes]
EXPECTED = {tp: {offset: value(tp, offset) for offset in range(RECORDS)} for tp in TPS}


def compared(expected: Values, found: Values) -> str:
    """``right``, ``fewer`` or ``differs``."""
    if any(found[offset] != expected.get(offset) for offset in found):
        return "differs"
    return "right" if found.keys() == expected.keys() else "fewer"


def worst(outcomes: list[str]) -> str:
    """The one that says most about a tool."""
    return min(outcomes, key=["differs", "fewer", "error", "right"].index)


def _checked(place: Place, directory: Path | None, *, read_data: bool = False) -> str:
    report = check(directory, place.store(), CheckOptions(read_data=read_data))
    return "finding" if any(found.severity is not Severity.INFO for found in report.findings) else "clean"


def check_bucket(place: Place) -> str:
    """``tiered check``."""
    return _checked(place, None)


def check_with_disk(place: Place) -> str:
    """``tiered check`` of both tiers."""
    return _checked(place, place.directory)


def check_read_data(place: Place) -> str:
    """``tiered check --read-data``."""
    return _checked(place, None, read_data=True)


def _read(place: Place, since: int | None) -> str:
    outcomes = []
    for tp in TPS:
        reader = Reader(None, BucketReads(place.store()), StoreOptions(), clock=place.clock, ids=place.ids)
        try:
            topic = reader.topic(tp.topic)
            if topic.partitions <= tp.partition:
                outcomes.append("fewer")
                continue
            found = {record.offset: record.value or b"" for record in topic.read(partition=tp.partition, since=since)}
            first = 0 if since is None else (since - START_MS) // 1000
            expected = {offset: body for offset, body in EXPECTED[tp].items() if offset >= first}
            outcomes.append(compared(expected, found))
        except TieredError:
            outcomes.append("error")
    return worst(outcomes)


def read(place: Place) -> str:
    """Everything, from the bucket alone."""
    return _read(place, None)


def read_by_time(place: Place) -> str:
    """The end of it."""
    return _read(place, SINCE)


def _write(place: Place, directory: Path) -> str:
    log = place.log(directory)
    try:
        offset = log.topic(TOPIC).append(b"more", partition=0).offset
        log.sync(timeout=60)
    finally:
        log.close()
    return "right" if offset == RECORDS else "differs"


def own_writer(place: Place) -> str:
    """The disk that wrote it goes on."""
    return _write(place, place.directory)


def fresh_writer(place: Place) -> str:
    """An empty disk goes on."""
    return _write(place, place.root / "fresh")


def restored(place: Place) -> str:
    """A disk from the bucket alone."""
    target = place.root / "restored"
    restore(place.store(), target, clock=place.clock, ids=place.ids)
    return worst([compared(EXPECTED[tp], _on_disk(target, tp)) for tp in TPS])


def _on_disk(target: Path, tp: TopicPartition) -> Values:
    found: Values = {}
    for path in sorted((target / str(tp)).glob("*.log")):
        found.update(values_of(path.read_bytes()))
    return found


ACTIONS: tuple[Callable[[Place], str], ...] = (
    check_bucket,
    check_with_disk,
    check_read_data,
    read,
    read_by_time,
    own_writer,
    fresh_writer,
    restored,
)


def outcome(action: Callable[[Place], str], place: Place) -> str:
    """The name of what became of it."""
    try:
        return action(place)
    except TieredError as error:
        return "error" if error.message else "an error that says nothing"
    except Hang as hang:
        return f"hang: {hang}"
    except Exception as error:  # noqa: BLE001 - what is not of the tree is what this looks for
        return f"raw {type(error).__name__}: {error}"[:200]
