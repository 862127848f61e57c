"""Every file beside a ``.log``, damaged or gone: the right records or an error, never fewer or other ones without."""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.damage.sampling import SEALED, SEED, both_kinds, sample
from tests.damage.scene import Scene, State, fresh, observe, truth
from tiered.local.segment.side_files import SEAL_SUFFIX

NAMES = {
    "index": lambda scene: scene.path(scene.bases[SEALED], ".index"),
    "time index": lambda scene: scene.path(scene.bases[SEALED], ".timeindex"),
    "transaction index": lambda scene: scene.path(scene.bases[SEALED], ".txnindex"),
    "snapshot": lambda scene: scene.path(scene.bases[SEALED + 1], ".snapshot"),
    "note": lambda scene: scene.path(scene.bases[SEALED], SEAL_SUFFIX),
    "leader epochs": lambda scene: scene.folder / "leader-epoch-checkpoint",
    "recovery points": lambda scene: scene.root / "recovery-point-offset-checkpoint",
    "clean mark": lambda scene: scene.root / ".kafka_cleanshutdown",
}

Spoil = Callable[[bytes, random.Random], bytes | None]


def flipped(data: bytes, seeded: random.Random) -> bytes:
    changed = bytearray(data)
    changed[seeded.randrange(len(data))] ^= 1 << seeded.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Spoil] = {
    "gone": lambda _data, _seeded: None,
    "empty": lambda _data, _seeded: b"",
    "half": lambda data, _: data[: len(data) // 2],
    "ragged": lambda data, _: data + b"abc",
    "noise": lambda data, seeded: seeded.randbytes(len(data)),
    "zeros": lambda data, _: bytes(len(data)),
    "bit": flipped,
    "another bit": lambda data, seeded: flipped(flipped(data, seeded), seeded),
}

NOTHING_TELLS = {("transaction index", damage) for damage in ("gone", "empty", "bit", "another bit")}
"""The index has no CRC and no length elsewhere: read_committed is not held to the truth then."""


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NAMES)
@both_kinds
def test_side_files(tmp_path: Path, name: str, damage: str, sparse: bool) -> None:
    offsets, right = truth(sparse=sparse)
    cases = [(state, read_only) for state in State for read_only in (True, False)]
    for state, read_only in sample(cases, f"{name} {damage} {sparse}"):
        scene = fresh(tmp_path / f"{state}{read_only}", sparse=sparse, state=state)
        path = NAMES[name](scene)
        if not path.exists() or (damage != "gone" and not path.stat().st_size):
            continue
        changed = DAMAGES[damage](path.read_bytes(), random.Random(SEED))
        if changed is None:
            path.unlink()
        else:
            path.write_bytes(changed)
        with scene.opened(read_only=read_only) as partition:
            seen = observe(partition, offsets)
        for way, found in seen.items():
            if way == "committed" and (name, damage) in NOTHING_TELLS:
                continue
            assert isinstance(found, str) or found == right[way], f"seed {SEED}: {state} {read_only} {way}: {found}"


def point(scene: Scene, entry: int, change: Callable[[int, list[int]], int]) -> None:
    """Sends one entry of the offset index elsewhere; ``change`` has its position and the starts of all batches."""
    path = scene.path(scene.bases[SEALED], ".index")
    data = bytearray(path.read_bytes())
    at = entry * 8 + 4
    starts = [place.position for place in scene.batches(scene.bases[SEALED])]
    struct.pack_into(">i", data, at, change(struct.unpack_from(">i", data, at)[0], starts))
    path.write_bytes(data)


@both_kinds
@pytest.mark.parametrize(
    "change",
    [
        lambda position, _: position + 3,
        lambda position, _: position - 3,
        lambda position, starts: next(start for start in starts if start > position) - 1,
        lambda position, starts: max(start for start in starts if start < position),
    ],
    ids=["misaligned", "too early", "just before the next", "an earlier batch"],
)
def test_an_index_entry_that_points_wrong_costs_a_scan(
    tmp_path: Path, sparse: bool, change: Callable[[int, list[int]], int], caplog: pytest.LogCaptureFixture
) -> None:
    offsets, right = truth(sparse=sparse)
    for entry in (1, 2):
        scene = fresh(tmp_path / str(entry), sparse=sparse, state=State.CLEAN)
        point(scene, entry, change)
        for read_only in (True, False):
            with caplog.at_level(logging.WARNING), scene.opened(read_only=read_only) as partition:
                for offset in offsets:
                    assert next(iter(partition.read_batches(offset)), None) is not None
                assert observe(partition, offsets) == right


@pytest.mark.parametrize(("lies", "said"), [(0, "index_rebuilt"), (1, "index_wrong")], ids=["first", "in between"])
def test_an_entry_of_a_later_batch_skips_nothing_and_is_said_to_be_wrong(
    tmp_path: Path, lies: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    offsets, right = truth(sparse=True)
    scene = fresh(tmp_path / "log", sparse=True, state=State.CLEAN)
    path = scene.path(scene.bases[SEALED], ".index")
    entries = list(struct.iter_unpack(">ii", path.read_bytes()))
    assert len(entries) > 2
    relative, right_position = entries[lies]
    later = scene.batches(scene.bases[SEALED])
    wrong = next(place.position for place in later if place.position > right_position)
    assert wrong < entries[-1][1]
    kept = [*entries[:lies], (relative, wrong), entries[-1]]
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in kept))
    with caplog.at_level(logging.WARNING), scene.opened(read_only=True) as partition:
        first = next(iter(partition.read_batches(scene.bases[SEALED] + relative)))
        assert int.from_bytes(bytes(first[:8]), "big") <= scene.bases[SEALED] + relative
        assert observe(partition, offsets) == right
    assert said in caplog.text
    assert "CorruptionError" not in caplog.text


@pytest.mark.parametrize(("lies", "said"), [(0, "index_rebuilt"), (1, "time_index_wrong")], ids=["first", "in between"])
def test_a_time_entry_that_names_a_later_offset_skips_nothing(
    tmp_path: Path, lies: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    offsets, right = truth(sparse=False)
    scene = fresh(tmp_path / "log", sparse=False, state=State.CLEAN)
    path = scene.path(scene.bases[SEALED], ".timeindex")
    entries = list(struct.iter_unpack(">qi", path.read_bytes()))
    assert len(entries) > 2
    entries[lies] = entries[lies][0], entries[-1][1]
    entries[lies + 1 : -1] = []
    path.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))
    with caplog.at_level(logging.WARNING), scene.opened(read_only=True) as partition:
        assert observe(partition, offsets) == right
    assert said in caplog.text
