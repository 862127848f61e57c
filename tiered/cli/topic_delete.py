"""``tiered topic delete``: delete a topic in the bucket, or on this disk."""

from __future__ import annotations

import click

from tiered.errors import ConfigError
from tiered.format.local_names import partition_dir
from tiered.local.directory.log_directory import LocalLog
from tiered.model import TopicPartition
from tiered.program.application import Application, Command, confirm, pass_application
from tiered.program.open_log import open_directory, open_in_bucket, open_view, refuse_internal
from tiered.program.open_reader import need_topic
from tiered.program.output import columns, counted, human_bytes, human_duration
from tiered.remote.claim import owner_of
from tiered.remote.gc.deletion import start_deletion
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import delete_snapshot, list_snapshots


@click.command("delete", cls=Command)
@click.argument("topic")
@click.option(
    "--local-only", is_flag=True, help="a tiered topic: delete the copy on this disk, the bucket keeps its own"
)
@click.option("--force", is_flag=True, help="in the bucket: delete its snapshots, too")
@pass_application
def delete(app: Application, *, topic: str, local_only: bool, force: bool) -> int:
    """Delete a topic from the log directory, which must have no writer, or with --remote from the bucket.

    In the bucket it is marked at once: from then on no program opens it. `tiered maintain` deletes its objects after
    gc.grace.ms, and then the name is free. Delete in the bucket first, then on the disk. If both are named, the one on
    the command line is meant.

    \b
    Examples:
      tiered topic delete weather --log-dir data --dry-run
      tiered topic delete weather --remote s3://acme-logs/prod --yes
      tiered topic delete weather --log-dir data --local-only --yes
    """
    if not local_only and _means_bucket(app, topic):
        return _delete_in_bucket(app, topic, force=force)
    with open_view(app) if app.dry_run else open_directory(app) as log:
        need_topic(topic, log.topics())
        refuse_internal(topic)
        info = log.topics()[topic]
        tps = [TopicPartition(topic, number) for number in info.here]
        if (log.claims.read().keys() | log.uploads.read().keys()) & set(tps) and not local_only:
            raise ConfigError(
                f"topic {topic} is tiered: its records in the bucket would stay, and so would its name",
                hint=f"the bucket first: `tiered topic delete {topic} --remote URL`; --local-only deletes the copy on "
                "this disk, with all that was not uploaded",
            )
        paths = [log.directory / partition_dir(tp) for tp in tps]
        linked = {path.name: str(path.resolve()) for path in paths if path.is_symlink()}
        positions = {tp: log.partition(tp).positions() for tp in tps if tp not in log.out_of_service}
        rows = [[tp, p.local_start_offset, p.uploaded_offset, p.end_offset] for tp, p in positions.items()]
        for line in columns(["partition", "local start", "uploaded", "end"], rows):
            app.out.say(line)
        if isinstance(log, LocalLog):
            confirm(app, "topic delete", f"Delete {topic} with {counted(len(tps), 'partition')}?")
            log.delete_topic(topic)
    fields = {"dry_run": app.dry_run, "topic": topic, "topic_id": str(info.topic_id), "partitions": len(tps)}
    fields["linked"] = linked
    verb = "would be deleted" if app.dry_run else "deleted"
    lines = [f"{'dry run: ' if app.dry_run else ''}{topic} {verb}, {counted(len(tps), 'partition')}"]
    lines += [
        f"{name} is a link: the next open for writing removes the files in {target}" for name, target in linked.items()
    ]
    return app.out.result("topic delete", fields, lines)


def _means_bucket(app: Application, topic: str) -> bool:
    """Return whether the bucket is meant, not the disk. Raises ConfigError if both are named and equally near.

    The command line is nearer than the environment, the environment nearer than the file.
    """
    if app.log_dir is None or app.remote is None:
        return app.log_dir is None
    disk, bucket = (app.values[name].origin for name in ("log_dir", "remote"))
    order = ("flag", "environment", "file")
    disk_rank, bucket_rank = (order.index(origin.partition(" ")[0]) for origin in (disk, bucket))
    if disk_rank == bucket_rank:
        unset = "env -u TIERED_LOG_DIR " if disk.startswith("environment ") else ""
        raise ConfigError(
            f"topic {topic} is deleted in one place at a time, and two are named ({disk}, {bucket})",
            hint=f"`{unset}tiered topic delete {topic} --remote URL` without --log-dir deletes it in the bucket, with "
            "--log-dir alone on a disk; --local-only deletes the copy on this disk, with all that was not uploaded",
        )
    return bucket_rank < disk_rank


def _delete_in_bucket(app: Application, topic: str, *, force: bool) -> int:
    """Mark the topic as deleted. Raises ConfigError if it has snapshots, unless ``force``."""
    app.need_a_tier()
    with open_in_bucket(app, topic) as (tiers, entry):
        views = [RootView(entry.topic_id, number, topic) for number in range(entry.partitions)]
        taken = [(view, one) for view in views for one in tiers.run(list_snapshots(view))]
        if taken and not force:
            raise ConfigError(
                f"topic {topic} has {counted(len(taken), 'snapshot')}, the first is {taken[0][1]}",
                hint="`tiered snapshot delete` them, or pass --force",
            )
        rows = []
        for view in views:
            if (pinned := tiers.run(view.pin())) is not None:
                size = human_bytes(pinned.size_bytes)
                rows.append([view.name, pinned.start_offset, pinned.next_offset, pinned.segments, size])
        for line in columns(["partition", "start", "end", "segments", "bytes"], rows):
            app.out.say(line)
        if not app.dry_run:
            confirm(app, "topic delete", f"Delete {topic} in {app.remote} for ever?")
            owner = owner_of("tiered topic delete")
            tiers.run(start_deletion(entry, owner))
            for view, one in taken:
                tiers.run(delete_snapshot(view, one.source.removeprefix("snapshot ")))
    grace_ms = entry.settings.gc_grace_ms
    fields = {"dry_run": app.dry_run, "topic": topic, "topic_id": str(entry.topic_id), "partitions": entry.partitions}
    done = f"{topic} would be deleted" if app.dry_run else f"{topic} is marked"
    text = f"{done}: a maintainer deletes its objects after {human_duration(grace_ms)}"
    return app.out.result("topic delete", fields | {"snapshots": len(taken), "grace_ms": grace_ms}, [text])
