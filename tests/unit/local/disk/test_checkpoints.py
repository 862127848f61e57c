"""The checkpoints of a log directory are read once, and never by who wrote them; what replaces one is seen at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.errors import CorruptionError, NewerFormatError
from tiered.local.disk.directory_files import RECOVERY_POINT_NAME, OffsetsFile
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import OFFSET_CHECKPOINT_NAME, PartitionUpload, UploadCheckpoint
from tiered.model import TopicPartition

NAME = RECOVERY_POINT_NAME
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


class Reading(PosixFiles):
    """Counts how often each small file is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_names: list[str] = []

    def read(self, path: Path) -> bytes:
        self.read_names.append(path.name)
        return super().read(path)


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return [record.getMessage().split()[0] for record in caplog.records].count("checkpoint_damaged")


def test_it_is_read_again_only_after_somebody_replaced_it(tmp_path: Path) -> None:
    files, theirs = Reading(), OffsetsFile(tmp_path, NAME, PosixFiles())
    mine = OffsetsFile(tmp_path, NAME, files)
    assert mine.read() == {}
    for offsets in ({ONE: 5}, {ONE: 6}, {ONE: 6, TWO: 1}):
        theirs.write(offsets)
        assert [mine.read(), mine.read_or_raise("all"), mine.read()] == [offsets] * 3
    assert files.read_names == [NAME] * 3
    mine.write({TWO: 9})
    assert (mine.read(), theirs.read(), files.read_names) == ({TWO: 9}, {TWO: 9}, [NAME] * 3)
    mine.path.unlink()
    assert (mine.read(), mine.read_or_raise("all")) == ({}, {})


def test_damage_is_told_once_for_each_file_and_is_never_an_empty_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = OffsetsFile(tmp_path, NAME, PosixFiles())
    for number, wrong in enumerate((b"0\n1\nt 0 ?\n", b"\xff")):
        PosixFiles().replace(mine.path, wrong)
        for _ in range(3):
            assert (mine.read(), mine.damaged) == ({}, True)
            with pytest.raises(CorruptionError, match="cannot be read") as refused:
                mine.read_or_raise("what is lost")
            assert refused.value.hint == "what is lost"
        assert warnings(caplog) == number + 1
    PosixFiles().replace(mine.path, b"1\n0\n")
    for _ in range(2):
        with pytest.raises(NewerFormatError) as newer:
            mine.read_or_raise("all")
        assert newer.value.hint == "upgrade tieredlog; nothing was changed"
    mine.write({ONE: 2})
    assert (mine.read(), mine.damaged) == ({ONE: 2}, False)


def test_what_this_process_wrote_is_not_read_again(tmp_path: Path) -> None:
    files = Reading()
    checkpoint = UploadCheckpoint(tmp_path, files)
    for end in (5, 9):
        checkpoint.update({ONE: PartitionUpload(end, 1)})
        assert checkpoint.read() == {ONE: PartitionUpload(end, 1)}
    checkpoint.update({TWO: PartitionUpload(3, 2, True, 1)})
    assert files.read_names == []
    assert checkpoint.read() == UploadCheckpoint(tmp_path, PosixFiles()).read()


def test_what_another_process_wrote_since_is_seen_and_kept(tmp_path: Path) -> None:
    files = Reading()
    ours, theirs = UploadCheckpoint(tmp_path, files), UploadCheckpoint(tmp_path, PosixFiles())
    ours.update({ONE: PartitionUpload(5, 1)})
    theirs.update({ONE: PartitionUpload(7, 1, True)})
    assert ours.read() == {ONE: PartitionUpload(7, 1, True)}
    theirs.update({ONE: PartitionUpload(8, 1)})
    ours.update({TWO: PartitionUpload(1, 1)})
    assert theirs.read() == {ONE: PartitionUpload(8, 1), TWO: PartitionUpload(1, 1)}
    (tmp_path / OFFSET_CHECKPOINT_NAME).unlink()
    assert ours.read() == {}
    assert len(files.read_names) == 2
