"""``tiered topics delete``: a topic leaves this disk."""

from __future__ import annotations

import click

from tiered.errors import ConfigError, NotFoundError
from tiered.local.directory.manager import LocalLog
from tiered.model import TopicPartition
from tiered.program.application import Application, Command, pass_application
from tiered.program.confirming import confirm, destructive, refuse_internal
from tiered.program.doors import need_topic
from tiered.program.output import columns, counted


@click.command("delete", cls=Command)
@click.argument("topic")
@click.option(
    "--local-only", is_flag=True, help="a tiered topic: delete the copy on this disk, the bucket keeps its own"
)
@destructive
@pass_application
def delete_command(app: Application, *, topic: str, local_only: bool, dry_run: bool, yes: bool) -> int:
    """Delete a topic from the log directory; there must be no writer. The bucket is never touched.

    \b
    Examples:
      tiered topics delete weather --log-dir data --dry-run
      tiered topics delete weather --log-dir data --yes
    """
    directory = app.need_log_dir()
    if not directory.is_dir():
        raise NotFoundError(f"there is no log directory {directory}", hint="correct --log-dir")
    with LocalLog.open(directory, clock=app.clock, ids=app.ids) as log:
        need_topic(topic, log.topics())
        refuse_internal(topic)
        info = log.topics()[topic]
        tps = [TopicPartition(topic, number) for number in info.here]
        if (log.claims.read().keys() | log.uploads.read().keys()) & set(tps) and not local_only:
            raise ConfigError(
                f"topic {topic} is tiered: its records in the bucket would stay, and so would its name",
                hint="--local-only deletes the copy on this disk, with all that was not uploaded",
            )
        positions = {tp: log.partition(tp).positions() for tp in tps if tp not in log.out_of_service}
        rows = [[tp, p.local_start_offset, p.uploaded_offset, p.end_offset] for tp, p in positions.items()]
        for line in columns(["partition", "local start", "uploaded", "end"], rows):
            app.out.say(line)
        if not dry_run:
            confirm(app, "topics delete", f"Delete {topic} with {counted(len(tps), 'partition')}?", yes=yes)
            log.delete_topic(topic)
    fields = {"dry_run": dry_run, "topic": topic, "topic_id": str(info.topic_id), "partitions": len(tps)}
    verb = "would be deleted" if dry_run else "deleted"
    return app.out.result(
        "topics delete", fields, [f"{'dry run: ' if dry_run else ''}{topic} {verb}, {counted(len(tps), 'partition')}"]
    )
