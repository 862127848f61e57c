"""``tiered-offset-checkpoint``: its writer need not read it again, and sees what another process has written since."""

from __future__ import annotations

from pathlib import Path

from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import OFFSET_CHECKPOINT_NAME, PartitionUpload, UploadCheckpoint
from tiered.model import TopicPartition

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


class CountingFiles(PosixFiles):
    """Counts the files that are read."""

    def __init__(self) -> None:
        self.read_files = 0

    def read(self, path: Path) -> bytes:
        self.read_files += 1
        return super().read(path)


def test_what_this_process_wrote_is_not_read_again(tmp_path: Path) -> None:
    files = CountingFiles()
    checkpoint = UploadCheckpoint(tmp_path, files)
    for end in (5, 9):
        checkpoint.update({FIRST: PartitionUpload(end, 1)})
        assert checkpoint.read() == {FIRST: PartitionUpload(end, 1)}
    checkpoint.update({SECOND: PartitionUpload(3, 2, True, 1)})
    assert files.read_files == 0
    assert checkpoint.read() == UploadCheckpoint(tmp_path, PosixFiles()).read()


def test_what_another_process_wrote_since_is_seen_and_kept(tmp_path: Path) -> None:
    files = CountingFiles()
    ours, theirs = UploadCheckpoint(tmp_path, files), UploadCheckpoint(tmp_path, PosixFiles())
    ours.update({FIRST: PartitionUpload(5, 1)})
    theirs.update({FIRST: PartitionUpload(7, 1, True)})
    assert ours.read() == {FIRST: PartitionUpload(7, 1, True)}
    theirs.update({FIRST: PartitionUpload(8, 1)})
    ours.update({SECOND: PartitionUpload(1, 1)})
    assert theirs.read() == {FIRST: PartitionUpload(8, 1), SECOND: PartitionUpload(1, 1)}
    (tmp_path / OFFSET_CHECKPOINT_NAME).unlink()
    assert ours.read() == {}
    assert files.read_files == 2
