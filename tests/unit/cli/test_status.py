"""What ``status`` says of a log that is not simply well: nobody uploads, fenced, lost, or never tiered."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tests.unit.local.counting import CountingFiles
from tiered.cli import status
from tiered.clock import SystemClock
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import uploader_lock
from tiered.model import TopicPartition
from tiered.program.open_log import Tiers
from tiered.program.partition_status import gather
from tiered.testing.clock import FakeClock


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return f"file://{tmp_path / 'bucket'}"


def append(cli: Cli, directory: Path, url: str, lines: bytes, *more: str) -> None:
    done = cli("append", "t", "--create", "--log-dir", directory, "--remote", url, *more, stdin=lines)
    assert done.code == 0, done.err


def test_nobody_uploads(cli: Cli, tmp_path: Path, url: str) -> None:
    directory = tmp_path / "d"
    append(cli, directory, url, b"1\n", "--durability", "remote")
    assert cli("status", "--log-dir", directory, "--remote", url).text.splitlines()[0] == "safe"
    append(cli, directory, url, b"2\n")
    waiting = cli("status", "--log-dir", directory, "--remote", url)
    assert waiting.code == 3
    assert waiting.text.splitlines()[0] == "NOT SAFE: no uploader runs, 1 record on this disk only"
    assert waiting.text.splitlines()[-1] == (
        "problem: no uploader runs; `tiered-uploader run`, or `tiered-uploader sync --wait`"
    )
    with uploader_lock(directory, PosixFiles()).held_while(SystemClock()):
        shown = cli("status", "--log-dir", directory, "--remote", url).text
    assert shown.splitlines()[0] == "safe"
    assert shown.splitlines()[-1] == "1 record only on this disk until the uploader has sent them"
    assert ") for 0s" in shown


def test_a_damaged_segment_that_is_not_uploaded_is_named(cli: Cli, tmp_path: Path, url: str) -> None:
    """Without an uploader only ``status`` can name it."""
    directory = tmp_path / "d"
    append(cli, directory, url, b"1\n", "--durability", "remote")
    with tiered.open(directory) as log:
        log.topic("t").append(b"not uploaded")
        log._local.partition(TopicPartition("t", 0)).roll()
        log.topic("t").append(b"more")
    well = cli("status", "--log-dir", directory, "--remote", url, "--json")
    assert (well.code, [each["code"] for each in well.summary["reasons"]]) == (3, ["stopped"])
    file = directory / "t-0" / f"{1:020d}.log"
    file.write_bytes(file.read_bytes().replace(b"not uploaded", b"xxx uploaded"))
    for place in (["--remote", url], []):
        stuck = cli("status", "--log-dir", directory, *place, "--json").summary
        assert (stuck["exit_code"], stuck["reason"]) == (3, "damaged")
        assert stuck["problems"][0].startswith("t-0: the upload waits: segment 1 of ")
        assert "`tiered check --log-dir DIR`" in stuck["problems"][0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status, "READ_BYTES", 1)
        assert "the upload waits" not in cli("status", "--log-dir", directory).text


def test_a_segment_whose_indexes_cannot_be_rebuilt_is_named(cli: Cli, tmp_path: Path, url: str) -> None:
    """The segment ends a transaction that begins in the bucket. Neither its index nor a snapshot is left."""
    directory = tmp_path / "d"
    with tiered.open(directory, remote=url) as log:
        topic = log.topic("t", create=True)
        txn = topic.transaction("tx")
        txn.append(b"aborted")
        log.sync()
        txn.abort()
        log._local.partition(TopicPartition("t", 0)).roll()
        topic.append(b"more")
    folder = directory / "t-0"
    for name in (f"{0:020d}.log", f"{0:020d}.index", f"{0:020d}.timeindex", f"{0:020d}.seal", f"{1:020d}.snapshot"):
        (folder / name).unlink()
    assert "the upload waits" not in cli("status", "--log-dir", directory).text
    (folder / f"{1:020d}.txnindex").unlink()
    stuck = cli("status", "--log-dir", directory, "--json").summary
    assert (stuck["exit_code"], stuck["reason"]) == (3, "damaged")
    assert f"the upload waits: {folder / f'{1:020d}.txnindex'}: the transaction that" in stuck["problems"][0]


def test_a_log_that_was_never_tiered_waits_for_nobody(cli: Cli, tmp_path: Path) -> None:
    with tiered.open(tmp_path / "d") as log:
        log.topic("t", create=True).append(b"x")
    assert cli("status", "--log-dir", tmp_path / "d").text.splitlines()[0] == "safe"


def fenced(cli: Cli, tmp_path: Path, url: str) -> Path:
    """Return a log directory of six records whose partition another volume has taken over at offset 3."""
    old, new = tmp_path / "old", tmp_path / "new"
    append(cli, old, url, b"1\n2\n3\n", "--durability", "remote")
    append(cli, old, url, b"4\n5\n")
    assert cli("restore", "--remote", url, "--log-dir", new).code == 0
    append(cli, new, url, b"w\nx\ny\nz\n", "--durability", "remote")
    refused = cli("append", "t", "--log-dir", old, "--remote", url, "--durability", "remote", stdin=b"6\n")
    assert (refused.code, "belongs to volume" in refused.err) == (11, True)
    return old


def test_a_restored_partition_that_the_old_machine_wrote_on(cli: Cli, tmp_path: Path, url: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    append(cli, old, url, b"1\n2\n3\n", "--durability", "remote")
    assert cli("restore", "--remote", url, "--log-dir", new).code == 0
    assert cli("status", "--log-dir", new, "--remote", url).code == 0
    append(cli, old, url, b"4\n", "--durability", "remote")
    place = ("--log-dir", new, "--remote", url)
    refused = cli("append", "t", *place, stdin=b"5\n")
    assert refused.code == 11
    assert f"`tiered repair rejoin t:0 --log-dir {new} --remote {url}` sets" in refused.err
    seen = cli("status", *place)
    assert (seen.code, "t-0   end 3   flushed 3   uploaded 3   0 records only here" in seen.text) == (3, True)
    assert "ends at 4 since" in seen.text
    assert "`tiered repair rejoin t:0` sets this disk's files aside" in seen.text
    assert cli("repair", "rejoin", *place, "--yes", "--json").summary["partitions"][0]["committed_end"] == 3
    assert cli("append", "t", *place, stdin=b"5\n").code == 0
    assert cli("cat", "t", *place).out == b"1\n2\n3\n4\n5\n"
    assert cli("repair", "rejoin", *place).code == 2


def test_a_fenced_partition(cli: Cli, tmp_path: Path, url: str) -> None:
    old = fenced(cli, tmp_path, url)
    seen = cli("status", "--log-dir", old, "--remote", url)
    assert seen.code == 3
    assert "t-0   end 6   flushed 6   uploaded 3   3 records only here" in seen.text
    assert "to offset 7," in seen.text
    assert "3 records only here; `tiered repair rejoin` sets them aside" in seen.text
    local = cli("status", "--log-dir", old, "--remote", url, "--json").summary["partitions"][0]["local"]
    assert (local["fenced"], local["end_offset"], local["uploaded_offset"], local["only_here"]) == (True, 6, 3, 3)
    told = cli("repair", "rejoin", "--log-dir", old, "--yes").text
    (line,) = [line for line in told.splitlines() if "on this disk only" in line]
    assert line.startswith("t-0: offsets 3 to 6 are perhaps on this disk only; `tiered cat t:0 --log-dir ")
    command = line.split("`")[1].split()
    assert cli(*command[1:]).out == b"4\n5\n6\n"


def test_what_was_set_aside_is_read_without_the_bucket_of_the_environment(
    cli: Cli, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another volume has committed other records of the same offsets: a read of both tiers gives those."""
    old = fenced(cli, tmp_path, url)
    monkeypatch.setenv("TIERED_REMOTE", url)
    told = cli("repair", "rejoin", "--log-dir", old, "--yes").text
    (line,) = [line for line in told.splitlines() if "on this disk only" in line]
    command = line.split("`")[1].split()
    assert command[:4] == ["env", "-u", "TIERED_REMOTE", "tiered"]
    assert "without the remote that is named (environment TIERED_REMOTE)" in line
    assert cli(*command[4:]).out == b"w\nx\ny\nz\n"
    monkeypatch.delenv("TIERED_REMOTE")
    assert cli(*command[4:]).out == b"4\n5\n6\n"


def test_a_lost_directory_shows_the_remote_part(cli: Cli, tmp_path: Path, url: str) -> None:
    append(cli, tmp_path / "d", url, b"1\n", "--durability", "remote")
    (tmp_path / "empty").mkdir()
    for lost, words in ((tmp_path / "gone", "does not exist"), (tmp_path / "empty", "is no log directory")):
        seen = cli("status", "--log-dir", lost, "--remote", url)
        assert seen.code == 10
        assert "t-0   end 1   uploaded 1   lag 0 records" in seen.text
        assert words in seen.text.splitlines()[-1]
        assert f"`tiered restore --remote {url} --log-dir {lost}` rebuilds it" in seen.text.splitlines()[-1]
        alone = cli("status", "--log-dir", lost)
        assert alone.code == 10
        assert alone.text.startswith("NOT SAFE: the log directory is gone: ")
        assert words in alone.text.splitlines()[0]
        told = cli("status", "--log-dir", lost, "--json").summary
        assert (told["safe"], told["reason"], told["exit_code"]) == (False, "directory_gone", 10)


def test_one_of_several_directories_says_what_lies_elsewhere(cli: Cli, tmp_path: Path) -> None:
    with tiered.open([tmp_path / "a", tmp_path / "b"]) as log:
        log.topic("t", partitions=2, create=True)
    lines = cli("status", "--log-dir", tmp_path / "a").text.splitlines()
    assert [line.split("   ")[1] for line in lines if line.startswith("t-")] == ["end 0", "not on this disk"]


def test_a_partition_whose_directory_is_gone(cli: Cli, tmp_path: Path, url: str) -> None:
    directory = tmp_path / "d"
    for topic in ("t", "u"):
        made = cli("append", f"{topic}:1", "--create", "--partitions", "2", "--log-dir", directory, stdin=b"1\n2\n")
        assert made.code == 0, made.err
    shutil.rmtree(directory / "t-1")
    shutil.rmtree(directory / "t-0")  # nothing was ever in it
    seen = cli("status", "--log-dir", directory)
    assert seen.code == 3
    problems = [line for line in seen.text.splitlines() if line.startswith("problem: ")]
    assert len(problems) == 1
    assert problems[0].startswith(
        "problem: t-1: its directory is gone from this disk or has no .log file; it held records up to offset 2:"
    )
    lines = seen.text.splitlines()
    assert lines[1:3] == [
        "t-0   not on this disk",
        "t-1   out of service",
    ]
    checked = cli("check", "--log-dir", directory, "--json")
    assert checked.code == 13
    found = [(each["code"], each["topic"], each["partition"]) for each in checked.messages if "severity" in each]
    assert found == [("partition_gone", "t", 1)]
    assert cli("check", "u", "--log-dir", directory).code == 0
    for _ in range(2):  # it is as before: an open makes no empty one
        opened = cli("append", "t:0", "--log-dir", directory, stdin=b"3\n")
        assert (opened.code, "partition_out_of_service partition=t-1 " in opened.err) == (0, True)
        refused = cli("append", "t:1", "--log-dir", directory, stdin=b"3\n")
        assert (refused.code, "t-1 is out of service: its directory" in refused.err) == (13, True)
        assert f"`tiered repair t:1 --log-dir {directory} --accept-loss`" in refused.err + "".join(problems)
    accept = ("repair", "t:1", "--log-dir", directory, "--accept-loss")
    planned = cli(*accept, "--dry-run")
    assert (planned.code, planned.text, (directory / "t-1").exists()) == (
        0,
        "dry run: 1 object would be repaired, 0 left\n",
        False,
    )
    assert "go on empty at offset 2" in planned.err
    assert cli(*accept).code == 2  # nobody can answer
    (done,) = cli(*accept, "--yes", "--json").summary["actions"]
    assert (done["topic"], done["partition"], done["lost"], done["repaired"]) == ("t", 1, [[0, 2]], True)
    assert cli("append", "t:1", "--log-dir", directory, stdin=b"3\n").code == 0
    assert cli("cat", "t:1", "--log-dir", directory, "--template", "%o %s\n").text == "2 3\n"
    assert (cli("status", "--log-dir", directory).code, cli("check", "--log-dir", directory).code) == (0, 0)


def test_a_partition_that_another_directory_holds_is_not_gone(cli: Cli, tmp_path: Path) -> None:
    with tiered.open([tmp_path / "a", tmp_path / "b"]) as log:
        topic = log.topic("t", partitions=2, create=True)
        for partition in range(2):
            topic.append(b"1", partition=partition)
    for name in ("a", "b"):
        # As a move leaves it that was killed before it noted where the partition is no more.
        (tmp_path / name / "recovery-point-offset-checkpoint").write_text("0\n2\nt 0 1\nt 1 1\n")
        assert cli("status", "--log-dir", tmp_path / name).text.splitlines()[0] == "safe"
        assert cli("check", "--log-dir", tmp_path / name).code == 0


def test_every_partition_is_looked_at_once(tmp_path: Path) -> None:
    """The bytes that a status reads grow with the partitions, not with their square."""
    read = []
    for partitions in (4, 8):
        directory, files = tmp_path / str(partitions), CountingFiles()
        with LocalLog.open(directory) as log:
            log.create_topic("t", partitions)
        with LogView.open(directory, files=files) as log:
            before = files.small_bytes
            assert len(gather(Tiers(log, None))) == partitions
            read.append(files.small_bytes - before)
    assert read[1] < 2.5 * read[0]


def test_a_bucket_whose_folder_is_gone_hides_its_own_part_alone(cli: Cli, tmp_path: Path, url: str) -> None:
    append(cli, tmp_path / "d", url, b"1\n")
    seen = cli("status", "--log-dir", tmp_path / "d", "--remote", f"file://{tmp_path / 'unmounted'}")
    assert seen.code == 10
    assert seen.text.splitlines()[1] == "t-0   end 1   flushed 1   uploaded 0   lag 1 record"
    assert "problem: the bucket cannot be read: " in seen.text
    assert cli("status", "--remote", f"file://{tmp_path / 'unmounted'}").code == 10


def test_a_partition_out_of_service_keeps_no_other_from_records(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "d"
    assert cli("append", "t", "--create", "--partitions", "2", "--log-dir", directory, stdin=b"").code == 0
    (directory / "t-0" / "partition.metadata").write_text("nonsense")
    taken = cli("append", "t:1", "--log-dir", directory, stdin=b"1\n2\n")
    assert (taken.code, "appended 2 records to t (next offsets 1: 2)" in taken.err) == (0, True)
    refused = cli("append", "t:0", "--log-dir", directory, "--json", stdin=b"1\n")
    assert (refused.code, refused.summary["records"]) == (13, 0)
    assert cli("status", "--log-dir", directory).text.splitlines()[1] == "t-0   out of service"


def two_topics(directory: Path) -> Path:
    with tiered.open(directory) as log:
        for topic in ("t", "u"):
            log.topic(topic, create=True).append(b"1")
    return directory


def test_a_partition_whose_segments_are_being_exchanged_hides_no_other(tmp_path: Path) -> None:
    """A broker that is killed while its cleaner renames leaves this: `status` ended with 10 and showed nothing."""
    path = two_topics(tmp_path / "d") / "t-0" / f"{0:020d}.log"
    path.rename(path.with_name(f"{path.name}.swap"))
    with LogView.open(tmp_path / "d", clock=FakeClock()) as log:
        exchanged, other = gather(Tiers(log, None))
        positions, unreadable = log.positions()
    assert ("the writer is replacing segments" in exchanged.problems[0], exchanged.positions) == (True, None)
    assert (other.end_offset, other.problems) == (1, [])
    assert [str(tp) for tp in positions] == ["u-0"]
    assert "the writer is replacing segments" in unreadable[TopicPartition("t", 0)].message


def test_a_partition_that_goes_while_it_is_looked_at_is_no_problem(tmp_path: Path) -> None:
    """A broker deletes a topic: its directory is renamed between the look at the log and the one at the partition."""

    class Deleting(PosixFiles):
        def names(self, path: Path) -> list[str]:
            if path.name == "t-0" and path.exists():
                path.rename(path.with_name(f"t-0.{'ab' * 16}-delete"))
            return super().names(path)

    directory = two_topics(tmp_path / "d")
    with LogView.open(directory, clock=FakeClock(), files=Deleting()) as log:
        gone, other = gather(Tiers(log, None))
    assert (gone.positions, gone.problems, other.end_offset, other.problems) == (None, [], 1, [])


def test_a_bucket_that_was_restored_to_an_earlier_time(cli: Cli, tmp_path: Path, url: str) -> None:
    """The result names the offsets that the bucket lost and those that it never had."""
    log, store = tmp_path / "log", Path(url.removeprefix("file://"))
    append(cli, log, url, b"1\n2\n", "--durability", "remote")
    shutil.copytree(store, tmp_path / "earlier")
    append(cli, log, url, b"3\n4\n", "--durability", "remote")
    append(cli, log, url, b"5\n")
    shutil.rmtree(store)
    (tmp_path / "earlier").rename(store)
    place = ("--log-dir", log, "--remote", url)
    assert "`tiered repair rejoin TOPIC:P` continues at its end" in cli("status", *place).text
    done = cli("repair", "rejoin", "t:0", *place, "--yes").text
    (line,) = [line for line in done.splitlines() if "on this disk only" in line]
    assert line.startswith("t-0: offsets 2 to 5 are perhaps on this disk only; `tiered cat t:0 --log-dir ")
    assert cli(*line.split("`")[1].split()[1:]).out == b"3\n4\n5\n"
    append(cli, log, url, b"6\n", "--durability", "remote")
    assert cli("cat", "t", *place).out == b"1\n2\n6\n"
