"""``tiered repair``: each verb on what it is for, with its plan, and what stays as it was."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

import tiered
from tests.lost_copies import lose_copies
from tests.unit.cli.conftest import Cli
from tests.unit.paged.sinks import commit, decide, log_of_sinks, lose
from tiered.errors import ConfigError
from tiered.model import TopicPartition
from tiered.store.base import ABSENT, Delete, Get, Object, Put
from tiered.store.location import StoreLocation, open_store

SETTINGS = {"segment.bytes": 600, "gc.grace.ms": 0}
TP = TopicPartition("t", 0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Forty records in small segments."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, config=SETTINGS)
        for number in range(40):
            topic.append(b"%02d" % number + b"x" * 60)
        log.sync(timeout=60)
    return url


def values(url: str) -> list[bytes | None]:
    with tiered.open_reader(url) as reader:
        return [record.value for record in reader.topic("t").read(0)]


def keys(tmp_path: Path, suffix: str) -> list[str]:
    """Of the objects that end so, by base offset."""
    store = tmp_path / "store"
    found = [str(path.relative_to(store)).removesuffix(".obj") for path in store.rglob(f"*{suffix}.obj")]
    return sorted(found, key=lambda key: key.rpartition("/")[2])


def root_file(tmp_path: Path) -> Path:
    return next((tmp_path / "store").glob("??/*/root.obj"))


def hurt(url: str, key: str, change: Callable[[bytearray], None] | None = None) -> bytes:
    """Changes or deletes an object; gives what it was."""
    store = open_store(url)
    got = store.execute(Get(key))
    assert isinstance(got, Object)
    store.execute(Delete((key,)))
    if change is not None:
        data = bytearray(got.data)
        change(data)
        store.execute(Put(key, bytes(data), ABSENT))
    return got.data


def flip(data: bytearray) -> None:
    data[90] ^= 1


def goes_on(url: str, tmp_path: Path) -> None:
    """The disk that wrote the log appends and uploads."""
    with tiered.open(tmp_path / "log", remote=url) as log:
        assert log.topic("t").append(b"more").offset == 40
        log.sync(timeout=60)


def test_index(cli: Cli, url: str, tmp_path: Path) -> None:
    before, remote = values(url), ("--remote", url)
    bundles = keys(tmp_path, ".idx")
    hurt(url, bundles[1])
    hurt(url, bundles[3], flip)
    assert cli("check", *remote).code == 13
    planned = cli("repair", "index", "t:0", *remote, "--dry-run", "--json").summary
    assert [one["problem"][:20] for one in planned["segments"]] == ["the index bundle is ", "the index bundle can"]
    assert keys(tmp_path, ".idx") == [key for key in bundles if key != bundles[1]]
    assert cli("repair", "index", "t:0", *remote).code == 2  # nobody can answer
    assert cli("repair", "index", "t:0", *remote, "--yes").code == 0
    assert (cli("check", *remote, "--read-data").code, values(url)) == (0, before)
    assert cli("repair", "index", "t:0", *remote, "--yes").code == 2  # nothing is wrong any more
    assert cli("repair", "index", "t:0", "0", "7", *remote, "--yes", "--json").summary["segments"][0]["lost"] == []
    assert (cli("check", *remote, "--read-data").code, values(url)) == (0, before)
    goes_on(url, tmp_path)


def test_drop_segment(cli: Cli, url: str, tmp_path: Path) -> None:
    before, remote = values(url), ("--remote", url)
    gone, bad = keys(tmp_path, ".log")[1], keys(tmp_path, ".log")[3]
    hurt(url, gone)
    damaged = hurt(url, bad, flip)
    refused = cli("repair", "index", "t:0", *remote, "--yes")
    assert (refused.code, "cannot be read: the .log is gone" in refused.err) == (13, True)
    planned = cli("repair", "drop-segment", "t:0", *remote, "--dry-run", "--json")
    lost = [each for one in planned.summary["segments"] for each in one["lost"]]
    assert (planned.code, len(lost)) == (3, 2)
    done = cli("repair", "drop-segment", "t:0", *remote, "--yes")
    assert (done.code, f"offsets {lost[0][0]} to {lost[0][1]} are lost: the .log is gone" in done.err) == (3, True)
    expected = [body for at, body in enumerate(before) if not any(low <= at < high for low, high in lost)]
    assert values(url) == expected
    assert cli("check", *remote, "--read-data").code == 0
    (aside,) = (tmp_path / "store").rglob("aside/*.obj")
    changed = bytearray(damaged)
    flip(changed)
    assert bytes(changed) in aside.read_bytes()
    assert f"offsets {lost[1][0]} to {lost[1][1]} are lost".encode() in root_file(tmp_path).read_bytes()
    goes_on(url, tmp_path)


def test_a_segment_that_lies_under_another_name_is_not_given_up(cli: Cli, url: str, tmp_path: Path) -> None:
    before, remote = values(url), ("--remote", url)
    key = keys(tmp_path, ".log")[2]
    for name in (key, key[:-3] + "idx"):
        data = hurt(url, name)
        other = name[:-5] + ("0" if name[-5] != "0" else "1") + name[-4:]
        open_store(url).execute(Put(other, data, ABSENT))
    assert cli("repair", "drop-segment", "t:0", *remote, "--yes").code == 2
    assert cli("repair", "index", "t:0", *remote, "--yes").code == 0
    assert (cli("check", *remote, "--read-data").code, values(url)) == (0, before)


def test_what_was_moved_to_another_folder_is_not_given_up(cli: Cli, url: str, tmp_path: Path) -> None:
    """Of a store that is a folder: whoever moved it moved the file. The command of the refusal brings it back."""
    before, remote, store = values(url), ("--remote", url), tmp_path / "store"
    folder = (store / keys(tmp_path, ".log")[2]).parent
    low = int(keys(tmp_path, ".log")[2].rpartition("/")[2][:20])
    (store / "backup").mkdir()
    moved = shutil.move(store / f"{keys(tmp_path, '.log')[2]}.obj", store / "backup")
    root = root_file(tmp_path).read_bytes()
    refused = cli("repair", "drop-segment", "t:0", *remote, "--yes")
    assert (refused.code, "has its name and size: nothing was given up" in refused.err) == (2, True)
    assert (root_file(tmp_path).read_bytes(), Path(moved).exists()) == (root, True)

    async def plan(accept_loss: bool) -> tuple[tuple[int, int], ...]:
        aio = StoreLocation.parse(url).open_aio()
        try:
            found = await tiered.aio.plan_mend(aio, TP, drop=True, accept_loss=accept_loss)
        finally:
            await aio.close()
        return tuple((loss.start, loss.end) for loss in found.lost)

    with pytest.raises(ConfigError, match="nothing was given up"):
        asyncio.run(plan(accept_loss=False))
    accepted = cli("repair", "drop-segment", "t:0", str(low), *remote, "--accept-loss", "--dry-run", "--json")
    (lost,) = accepted.summary["segments"]
    assert (accepted.code, lost["problem"].endswith(" has its name and size")) == (3, True)
    assert asyncio.run(plan(accept_loss=True)) == tuple((start, end) for start, end in lost["lost"])
    said = re.search(r"\(`(mkdir -p [^`]*)`\)", refused.err)
    assert said is not None
    folder.rename(store / "aside.folder")  # the command makes it; what else was there comes back below
    subprocess.run(said[1], shell=True, check=True)
    for path in (store / "aside.folder").iterdir():
        path.rename(folder / path.name)
    assert (cli("check", *remote, "--read-data").code, values(url)) == (0, before)


def rewrite(cli: Cli, tmp_path: Path, only: str, config: dict[str, str | int]) -> str:
    """A bucket in which a maintainer has written segments anew, and collected nothing."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 600, "retention.ms": -1, **config})
        for number in range(40):
            topic.append(b"%02d" % number + b"x" * 60, key=b"%d" % (number % 7), timestamp=1_700_000_000_000)
        log.sync(timeout=60)
    assert cli("maintain", "run", "--remote", url, "--only", only, "--yes").code == 0
    return url


@pytest.mark.parametrize("damage", ["gone", "a bit", "a bit of one piece, too"])
def test_index_puts_together_again_what_was_merged(cli: Cli, tmp_path: Path, damage: str) -> None:
    """What it was merged of waits for its collection, and is the same bytes; of other bytes nothing is made."""
    url = rewrite(cli, tmp_path, "merge", {"merge.min.bytes": 100_000, "merge.target.bytes": 3000})
    before, remote = values(url), ("--remote", url)
    merged = next(key for key in keys(tmp_path, ".log") if "/s/m" in key)
    hurt(url, merged, None if damage == "gone" else flip)
    if damage == "gone":
        hurt(url, merged.removesuffix(".log") + ".idx")
    if damage == "a bit of one piece, too":
        hurt(url, next(key for key in keys(tmp_path, ".log") if "/s/w" in key), flip)
        assert cli("repair", "index", "t:0", *remote, "--dry-run").code == 13
        return
    dropped = cli("repair", "drop-segment", "t:0", *remote, "--yes")
    assert (dropped.code, "`tiered repair index` writes anew" in dropped.err) == (2, True)
    assert "that it was merged of are there" in cli("repair", "index", "t:0", *remote, "--yes").err
    assert (cli("check", *remote, "--read-data").code, values(url)) == (0, before)


def test_what_a_rewrite_took_the_place_of_is_not_given_up(cli: Cli, tmp_path: Path) -> None:
    url = rewrite(cli, tmp_path, "compact", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    before, remote = values(url), ("--remote", url)
    assert len(before) < 40
    hurt(url, [key for key in keys(tmp_path, ".log") if "/s/m" in key][-1])
    assert cli("repair", "index", "t:0", *remote, "--yes").code == 13
    refused = cli("repair", "drop-segment", "t:0", *remote, "--yes")
    assert (refused.code, "nothing was given up" in refused.err) == (2, True)
    said = re.search(r"`tiered (repair root t:0 --to-version \d+)`", refused.err)
    assert said is not None
    assert cli(*said[1].split(), *remote, "--yes").code == 0
    assert cli("check", *remote, "--read-data").code == 0
    assert set(before) <= set(values(url))


@pytest.mark.parametrize("lost", ["an object", "an object and the notes", "the root and a rewrite"])
def test_what_an_erasure_took_out_is_named_where_it_comes_back(cli: Cli, tmp_path: Path, lost: str) -> None:
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 600})
        for number in range(40):
            topic.append(b"%02d" % number + b"x" * 60, key=b"%d" % (number % 7))
        log.sync(timeout=60)
    remote, whole = ("--remote", url), values(url)
    assert cli("erase", "t", "--key", "3", *remote, "--yes").code == 3  # the older objects have their grace
    erased = values(url)
    rewrites = [key for key in keys(tmp_path, ".log") if "/s/m" in key]
    notes = [str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").rglob("segments/*.json*")]
    if lost == "an object and the notes":
        for key in notes:
            hurt(url, key.removesuffix(".obj"), lambda data: data.__setitem__(slice(0, 5), b"#####"))
    if lost.startswith("an object"):
        hurt(url, rewrites[2])
        dropped = cli("repair", "drop-segment", "t:0", *remote, "--yes")
        said = re.search(r"`tiered (repair root t:0 --to-version \d+)`", dropped.err)
        assert said is not None
        verb = said[1].split()
    else:
        root_file(tmp_path).unlink()
        hurt(url, rewrites[-1])
        hurt(url, rewrites[-1].removesuffix(".log") + ".idx")
        verb = ["repair", "rebuild-catalog", "t:0"]
    again = cli(*verb, *remote, "--yes", "--json")
    back = values(url)
    (told,) = json.loads(again.out)["undone"]
    known = lost != "an object and the notes"
    assert (again.code, told["records"]) == (3, len(back) - len(erased) if known else -1)
    assert known or "records (a note of it cannot be read) that" in again.err
    assert len(erased) < len(back) <= len(whole)
    assert "erase them again afterwards, `tiered erase t:0 --key K --yes`" in again.err
    if not known:
        refused = cli("erase", "t:0", "--key", "3", *remote, "--yes")
        assert (refused.code, "next: delete it, and erase again" in refused.err) == (13, True)
        for key in notes:
            hurt(url, key.removesuffix(".obj"))
    assert cli("erase", "t:0", "--key", "3", *remote, "--yes").code == 3
    assert values(url) == erased
    assert cli("check", *remote, "--read-data").code == 0


def test_registry(cli: Cli, url: str, tmp_path: Path) -> None:
    before, remote = values(url), ("--remote", url)
    assert cli("repair", "registry", "t", *remote, "--yes").code == 2  # it is right
    assert cli("repair", "registry", "u", *remote, "--yes").code == 10
    hurt(url, "topics/t")
    assert cli("cat", "t", *remote).code == 10
    assert "would name 1 partition" in cli("repair", "registry", "t", *remote, "--dry-run").err
    assert cli("cat", "t", *remote).code == 10
    done = cli("repair", "registry", "t", *remote, "--yes", "--json")
    assert (done.code, done.summary["settings_lost"], values(url)) == (3, True, before)
    assert cli("check", *remote).code == 0
    hurt(url, "topics/t", lambda data: data.__setitem__(slice(0, 5), b"#####"))
    assert cli("repair", "registry", "t", *remote, "--yes").code == 3
    assert b"#####" in next((tmp_path / "store").rglob("aside/*.obj")).read_bytes()
    goes_on(url, tmp_path)


def test_registry_of_two_topics_whose_entries_name_each_others_ids(cli: Cli, url: str, tmp_path: Path) -> None:
    before, remote = values(url), ("--remote", url)
    with tiered.open(tmp_path / "log", remote=url) as log:
        log.topic("u", partitions=2, create=True).append(b"of u", partition=0)
        log.sync(timeout=60)
    ids = {name: json.loads(hurt(url, f"topics/{name}", lambda _: None))["topic_id"].encode() for name in "tu"}
    for name, other in ("tu", "ut"):
        hurt(url, f"topics/{name}", replaced(ids[name], ids[other]))
    checked = cli("check", *remote)
    assert (checked.code, checked.text.count("is the root of topic")) == (13, 2)
    told = json.loads(cli("repair", "advice", *remote, "--json").out)["lost"]
    assert sorted(each["key"] for each in told) == ["topics/t", "topics/u"]
    for name in "tu":
        assert any(f"`tiered repair registry {name}" in step for each in told for step in each["steps"])
        assert f"`tiered repair registry {name}` makes it anew" in checked.text + checked.err
        assert cli("repair", "registry", name, *remote, "--yes").code == 0
    assert (cli("check", *remote).code, values(url)) == (0, before)


def test_registry_takes_no_deletion_back(cli: Cli, url: str) -> None:
    remote = ("--remote", url)
    assert cli("topics", "delete", "t", *remote, "--yes").code == 0
    hurt(url, "topics/t")
    assert cli("repair", "registry", "t", *remote, "--yes").code == 3
    assert json.loads(hurt(url, "topics/t", lambda _: None))["state"] == "deleting"


@pytest.mark.parametrize("copies", [True, False])
def test_registry_where_no_root_is_left(cli: Cli, url: str, tmp_path: Path, *, copies: bool) -> None:
    """A copy tells the name, or whoever knows it."""
    before, remote = values(url), ("--remote", url)
    assert cli("maintain", "run", "t:0", *remote, "--start-offset", "1", "--yes").code == 0  # keeps a copy
    topic_id = json.loads(hurt(url, "topics/t"))["topic_id"]
    root_file(tmp_path).unlink()
    chosen = ["t"]
    if not copies:
        for path in (tmp_path / "store").rglob("hist/*.obj"):
            path.unlink()
        refused = cli("repair", "registry", "t", *remote, "--yes")
        assert (refused.code, "choose it with --id" in refused.err) == (10, True)
        chosen += ["--id", str(UUID(topic_id))]
    assert cli("repair", "registry", *chosen, *remote, "--yes").code == 3
    assert cli("repair", "rebuild-catalog", "t:0", *remote, "--yes").code == 0
    assert (cli("check", *remote).code, values(url)) == (0, before)


def replaced(old: bytes, new: bytes) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[:] = data.replace(old, new)

    return change


def test_root_goes_back_before_a_trim_and_keeps_what_was_appended(cli: Cli, url: str, tmp_path: Path) -> None:
    before, remote = values(url), ("--remote", url)
    trim = ("maintain", "run", "t:0", "--only", "retention", "--start-offset", "20", "--yes", *remote)
    assert cli(*trim).code == 0
    version = max(int(path.name[:16], 16) for path in (tmp_path / "store").rglob("hist/*.obj"))
    goes_on(url, tmp_path)
    after = values(url)
    back = ("repair", "root", "t:0", *remote, "--to-version")
    assert cli(*back, "99999", "--yes").code == 2
    assert cli(*back, "1", "--yes").code == 10  # was not kept
    planned = cli(*back, str(version), "--dry-run", "--json").summary
    assert (planned["start_offset"], planned["next_offset"], planned["found"]) == (0, 41, 1)
    assert values(url) == after
    assert cli(*back, str(version), "--yes").code == 0
    assert values(url) == [*before, b"more"]
    assert cli("check", *remote, "--read-data").code == 0
    assert cli(*trim).code == 0
    assert cli("gc", "run", "--yes", *remote).code in (0, 3)


def test_root_does_not_go_back_to_what_was_collected(cli: Cli, url: str, tmp_path: Path) -> None:
    remote = ("--remote", url)
    assert cli("maintain", "run", "t:0", "--only", "retention", "--start-offset", "20", "--yes", *remote).code == 0
    version = next(int(path.name[:16], 16) for path in (tmp_path / "store").rglob("hist/*.obj"))
    assert cli("gc", "run", "--yes", *remote).code in (0, 3)
    refused = cli("repair", "root", "t:0", *remote, "--to-version", str(version), "--yes")
    assert (refused.code, "is collected" in refused.err) == (10, True)


def test_a_lost_root_and_a_lost_object(cli: Cli, url: str, tmp_path: Path) -> None:
    before, remote = values(url), ("--remote", url)
    key = keys(tmp_path, ".log")[2]
    low = int(key.rpartition("/")[2][:20])
    high = int(keys(tmp_path, ".log")[3].rpartition("/")[2][:20])
    for name in (key, key[:-3] + "idx"):
        hurt(url, name)
    hurt(url, str(root_file(tmp_path).relative_to(tmp_path / "store"))[:-4])
    rebuild = ("repair", "rebuild-catalog", "t:0", *remote, "--yes", "--json")
    refused = cli(*rebuild)
    assert (refused.code, "--accept-loss" in refused.err) == (13, True)
    done = cli(*rebuild, "--accept-loss")
    assert (done.code, done.summary["lost"]) == (3, [[low, high]])
    assert values(url) == before[:low] + before[high:]
    assert cli("check", *remote, "--read-data").code == 0


def test_a_lost_root_and_a_lost_index(cli: Cli, url: str, tmp_path: Path) -> None:
    """Its copy tells the row: the root names it again, and the index is made from its data."""
    before, remote = values(url), ("--remote", url)
    trim = ("maintain", "run", "t:0", "--only", "retention", "--start-offset", "1", "--yes", *remote)
    assert cli(*trim).code == 0  # which keeps a copy of before it
    key = keys(tmp_path, ".log")[2]
    hurt(url, key[:-3] + "idx")
    hurt(url, str(root_file(tmp_path).relative_to(tmp_path / "store"))[:-4])
    done = cli("repair", "rebuild-catalog", "t:0", *remote, "--yes", "--json")
    assert (done.code, done.summary["lost"], done.summary["bare"]) == (3, [], [key])
    assert f"{key} has no .idx that fits: `tiered repair index t:0`" in done.err
    assert cli("check", *remote).code == 13
    assert cli("repair", "index", "t:0", *remote, "--yes").code == 0
    assert values(url) == before
    assert cli("check", *remote, "--read-data").code == 0


def test_a_lost_root_of_sinks_that_were_at_work_side_by_side(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_copies(monkeypatch)
    url = f"file://{tmp_path / 'store'}"
    log = log_of_sinks(open_store(url))
    lose(log)
    rebuild = ("repair", "rebuild-catalog", "flights:0", "--remote", url, "--yes", "--json")
    done = cli(*rebuild)
    assert (done.code, done.summary["batches"], done.summary["unproven"]) == (0, 1, [0, 0])
    for decision in reversed([decide(log, [10], 0, "one"), decide(log, [20], 0, "two")]):
        commit(log, decision)
    lose(log)
    refused = cli(*rebuild, "--accept-loss")
    assert (refused.code, "--accept-order" in refused.err) == (13, True)
    done = cli(*rebuild, "--accept-order")
    assert (done.code, done.summary["batches"], done.summary["unproven"]) == (3, 3, [30, 60])
    assert "nothing tells in which order sinks committed what has offsets 30 to 60" in done.err
    assert cli("check", "--remote", url, "--read-data").code == 0


def test_for_asyncio(url: str, tmp_path: Path) -> None:
    before = values(url)
    hurt(url, keys(tmp_path, ".idx")[1])
    hurt(url, "topics/t")

    async def repair() -> None:
        store = StoreLocation.parse(url).open_aio()
        await tiered.aio.put_entry(store, await tiered.aio.plan_entry(store, "t"))
        plan = await tiered.aio.plan_mend(store, TP)
        assert await tiered.aio.mend(store, plan, "test") > plan.version
        await store.close()

    asyncio.run(repair())
    assert values(url) == before


def cut(data: bytearray) -> None:
    del data[-20:]


def grow(data: bytearray) -> None:
    data.extend(b"more")


@pytest.mark.parametrize("change", [None, flip, cut, grow])
@pytest.mark.parametrize("merged", [False, True])
def test_put_back_takes_what_a_disk_still_holds(
    cli: Cli, url: str, tmp_path: Path, change: Callable[[bytearray], None] | None, merged: bool
) -> None:
    """Same bytes under the same name: the catalog and its snapshots are right again, and neither was changed."""
    remote, disk = ("--remote", url), ("--log-dir", str(tmp_path / "log"))
    before = values(url)
    if merged:
        setting = ("--set", "merge.min.bytes=1000", "--set", "merge.target.bytes=2500")
        assert cli("topics", "alter", "t", *setting, *disk, *remote).code == 0
        assert cli("maintain", "run", "t", "--only", "merge", "--yes", *remote).code == 0
    assert cli("snapshot", "create", "kept", *remote).code == 0
    root = root_file(tmp_path).read_bytes()
    sizes = {key: (tmp_path / "store" / f"{key}.obj").stat().st_size for key in keys(tmp_path, ".log")}
    key = max(sizes, key=lambda key: (sizes[key], key)) if merged else keys(tmp_path, ".log")[2]
    low = int(key.rpartition("/")[2][:20])
    body = hurt(url, key, change)
    assert cli("check", *remote, "--read-data").code == 13
    refused = cli("repair", "drop-segment", "t:0", str(low), *remote, *disk, "--yes")
    says = "is whole" if change is grow else f"`tiered repair put-back t:0 {low} --log-dir"
    assert (refused.code, says in refused.err) == (2, True)
    planned = cli("repair", "put-back", "t:0", *remote, *disk, "--dry-run", "--json").summary["segments"]
    assert [(each["start"], each["key"], each["held"]) for each in planned] == [(low, key, True)]
    assert cli("repair", "put-back", "t:0", *remote, *disk, "--yes").code == 0
    got = open_store(url).execute(Get(key))
    assert isinstance(got, Object)
    assert got.data == body
    assert (values(url), root_file(tmp_path).read_bytes()) == (before, root)
    assert cli("check", *remote, "--read-data").code == 0
    again = cli("repair", "put-back", "t:0", str(low), *remote, *disk, "--yes")
    assert (again.code, "nothing to put back" in again.err) == (2, True)
    if change is not None:
        (aside,) = (tmp_path / "store").rglob("aside/*.obj")
        damaged = bytearray(body)
        change(damaged)
        assert aside.read_bytes().startswith(bytes(damaged))


def test_put_back_puts_no_other_bytes(cli: Cli, url: str, tmp_path: Path) -> None:
    """Those of a damaged disk, of another topic under the name, and of no disk."""
    remote, disk = ("--remote", url), ("--log-dir", str(tmp_path / "log"))
    key = keys(tmp_path, ".log")[2]
    low = int(key.rpartition("/")[2][:20])
    hurt(url, key)
    there = keys(tmp_path, "")
    on_disk = tmp_path / "log" / "t-0" / f"{low:020d}.log"
    data = bytearray(on_disk.read_bytes())
    data[-1] ^= 1
    on_disk.write_bytes(data)
    done = cli("repair", "put-back", "t:0", *remote, *disk, "--yes", "--json")
    assert (done.code, [each["held"] for each in done.summary["segments"]]) == (3, [False])
    assert "lacks it, too" in done.err
    on_disk.unlink()
    assert cli("repair", "put-back", "t:0", *remote, *disk, "--yes").code in {3, 13}
    with tiered.open(tmp_path / "other") as log:
        log.topic("t", create=True).append(b"x")
    refused = cli("repair", "put-back", "t:0", *remote, "--log-dir", str(tmp_path / "other"), "--yes")
    assert (refused.code, "under the topic id" in refused.err) == (13, True)
    assert cli("repair", "put-back", "t:0", *remote, "--log-dir", str(tmp_path / "none"), "--yes").code == 10
    assert cli("repair", "put-back", "u:0", *remote, *disk, "--yes").code == 10
    assert keys(tmp_path, "") == there


def test_put_back_for_asyncio(url: str, tmp_path: Path) -> None:
    before = values(url)
    key = keys(tmp_path, ".log")[1]
    hurt(url, key, flip)

    async def repair() -> None:
        store = StoreLocation.parse(url).open_aio()
        plan = await tiered.aio.plan_put_back(store, TP, tmp_path / "log")
        assert [each.key for each in plan.segments] == [key]
        assert await tiered.aio.put_back(store, plan) == 1
        await store.close()

    asyncio.run(repair())
    assert values(url) == before
