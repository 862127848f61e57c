"""Open of one partition directory for writing, with the recovery that it needs."""

from __future__ import annotations

from pathlib import Path

from tiered.local.disk.epochs import LeaderEpochs
from tiered.local.disk.files import make_inside
from tiered.local.disk.names import SPARSE_NAME
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.disk.volume import ensure_topic_id
from tiered.local.partition.context import DirectoryContext
from tiered.local.partition.write_log import LoadedLog, WriteLog
from tiered.local.recovery.recovery import UNKNOWN_POINT, Recovery
from tiered.model import TopicPartition


def open_partition(
    around: DirectoryContext,
    path: Path,
    tp: TopicPartition,
    topic: TopicInfo,
    *,
    clean: bool,
    recovery_point: int = UNKNOWN_POINT,
    start: int | None = None,
    upload: PartitionUpload | None = None,
) -> WriteLog:
    """Return the partition in ``path``; create a missing directory.

    ``start``: the log start in the checkpoint, None without one. ``upload``: the uploader's last report.
    """
    files = around.files
    if not files.is_directory(path):
        make_inside(files, path)
        clean = True
    ensure_topic_id(path, files, topic.topic_id)
    if topic.adopted and files.state(path / SPARSE_NAME) is None:  # it may have been compacted, whatever it is now
        files.replace(path / SPARSE_NAME, b"")
    epochs = LeaderEpochs(path, files)
    recovery = Recovery(
        files,
        path,
        tp,
        epochs=epochs,
        interval_bytes=topic.config.index_interval_bytes,
        now_ms=around.clock.now_ms(),
        keeps_point=not topic.adopted,
        dense=not topic.config.compacted and files.state(path / SPARSE_NAME) is None,
    )
    segments = recovery.load(clean=clean, recovery_point=recovery_point, start_offset=start or 0)
    point = segments[-1].end_offset if clean else max(recovery_point, 0)
    log = WriteLog(around, path, tp, topic, LoadedLog(segments, epochs, start, point, upload))
    with log.context.lock:
        log.producers.load(met=recovery.met_producers)
    if clean:
        log.segments.note_opened()
    else:
        log.durability.flush_recovered()
    return log
