"""What a directory holds that somebody else writes: found again at each look, nothing locked, nothing changed."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from uuid import UUID

from tiered.errors import TieredError
from tiered.local.directory.notes import DirectoryNotes
from tiered.local.directory.view import DirectoryView
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploads import PartitionUpload, UploadCheckpoint
from tiered.local.disk.volume import (
    NO_ID,
    discovered,
    expected_topics,
    read_topic_ids,
    read_volume,
    without_absent,
)
from tiered.local.partition.opening import foreign_log
from tiered.local.partition.partition import PartitionLog
from tiered.local.partition.surroundings import Surroundings
from tiered.local.partition.watermark import WATERMARK_NAME
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")


class Survey:
    """Partitions known already are kept from one look to the next. The caller holds a lock."""

    def __init__(
        self, directory: Path, around: Surroundings, *, uploads: UploadCheckpoint, notes: DirectoryNotes
    ) -> None:
        self.volume_id: UUID = NO_ID
        self.topics: dict[str, TopicInfo] = {}
        self.partitions: dict[TopicPartition, PartitionLog] = {}
        self.broken: dict[TopicPartition, TieredError] = {}
        self._directory = directory
        self._around = around
        self._uploads = uploads
        self._recovery_points = notes.points
        self._log_starts = notes.starts
        self._watermarks = notes.watermarks

    def look(self) -> None:
        """Reads the directory. Renamed directories (``-delete``, ``-stray``, ``-future``) are no partitions."""
        files, directory = self._around.files, self._directory
        meta = read_volume(directory, files)
        self.volume_id = (meta.directory_id if meta else None) or NO_ID
        topics = expected_topics(directory, files)
        ours = {name for name, topic in topics.items() if not topic.adopted}
        starts = self._log_starts.read()
        seen = DirectoryView.look(directory, files)
        for name, refusal in seen.strange:
            LOGGER.warning("directory_skipped path=%s error=%s", directory / name, refusal)
        present = seen.partitions
        broken: dict[TopicPartition, TieredError] = {}
        for topic, here in read_topic_ids(directory, files, present, broken).items():
            topics[topic] = discovered(topics.get(topic), topic, here)
        self.broken = broken
        for tp, path in present.items():
            if tp not in self.partitions and tp not in broken:
                self.partitions[tp] = foreign_log(
                    self._around,
                    path,
                    tp,
                    topics[tp.topic],
                    ours=tp.topic in ours,
                    start=starts.get(tp, 0),
                    upload=partial(self._upload_of, tp),
                    recovery_point=partial(self._recovery_point_of, tp),
                    high_watermark=partial(self._watermark_of, tp, path),
                )
        for tp in self.partitions.keys() - (present.keys() - broken.keys()):
            del self.partitions[tp]
        self.topics = without_absent(topics)

    def _upload_of(self, tp: TopicPartition) -> PartitionUpload | None:
        return self._uploads.read().get(tp)

    def _recovery_point_of(self, tp: TopicPartition) -> int:
        return self._recovery_points.read().get(tp, 0)

    def _watermark_of(self, tp: TopicPartition, path: Path) -> int | None:
        """As its writer noted it last, if the partition follows; None: it is the end."""
        if self._around.files.state(path / WATERMARK_NAME) is None:
            return None
        return self._watermarks.read().get(tp, 0)
