"""Open of one partition directory: for writing, with the recovery it needs, or read-only beside another writer."""

from __future__ import annotations

from pathlib import Path

from tiered.local.disk.epochs import LeaderEpochs
from tiered.local.disk.files import make_inside
from tiered.local.disk.names import SPARSE_NAME
from tiered.local.disk.topics import TopicInfo
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.disk.volume import ensure_topic_id
from tiered.local.partition.context import DirectoryContext
from tiered.local.partition.partition import PartitionLog
from tiered.local.partition.writer import PartitionWriter
from tiered.local.recovery.recovery import UNKNOWN_POINT, Recovery
from tiered.model import TopicPartition


def open_writer(
    around: DirectoryContext,
    path: Path,
    tp: TopicPartition,
    topic: TopicInfo,
    *,
    clean: bool,
    recovery_point: int = UNKNOWN_POINT,
    start: int | None = None,
    upload: PartitionUpload | None = None,
) -> PartitionWriter:
    """``start`` was checkpointed, None if it was not. A missing directory is created.

    ``upload``: what is known of the bucket; without it a load of the producers would take the disk for all there is.
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
    loaded = recovery.load(clean=clean, recovery_point=recovery_point, start_offset=start or 0)
    end = loaded[-1].end_offset
    writer = PartitionWriter(
        around,
        path,
        tp,
        topic=topic,
        epochs=epochs,
        loaded=loaded,
        start_offset=start,
        recovery_point=end if clean else max(recovery_point, 0),
    )
    if upload is not None:
        writer.set_uploaded(upload)
    writer.load_producers(met=recovery.met_producers)
    if clean:
        writer.segments.note_opened()
    else:
        writer.durability.flush_recovered()
    return writer


def writable_log(around: DirectoryContext, writer: PartitionWriter) -> PartitionLog:
    """Return the log of a partition that this process writes."""
    return PartitionLog(
        around.files,
        writer,
        writer.config,
        clock=around.clock,
        upload=lambda: writer.upload,
        recovery_point=lambda: writer.durability.flushed,
        buffer_bytes=around.config.read_buffer_bytes,
    )
