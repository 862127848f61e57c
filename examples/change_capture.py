"""Change-data capture: copy each change of a table in SQLite into a compacted topic.

    $ python examples/change_capture.py accounts.db

Triggers write each change into an outbox, in the transaction of the change itself. This program moves the outbox into
the topic: the key of a row is the key of its records, and a deleted row becomes a record without a value. Compaction
keeps the newest record of each key, so the topic is the table, and its history for a while.

A crash between the append and the DELETE repeats changes, in their order. So the newest record of each key is right.
"""

import os
import sqlite3
import sys

import tiered

REMOTE = os.environ.get("TIERED_REMOTE", "file:///tmp/tieredlog-bucket")
LOG_DIR = os.environ.get("TIERED_LOG_DIR", "data/accounts")

SCHEMA = """
CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, owner TEXT, cents INTEGER);
CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, row TEXT);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON accounts BEGIN
    INSERT INTO outbox (id, row) VALUES (new.id, json_object('owner', new.owner, 'cents', new.cents));
END;
CREATE TRIGGER IF NOT EXISTS changed AFTER UPDATE ON accounts BEGIN
    INSERT INTO outbox (id, row) VALUES (new.id, json_object('owner', new.owner, 'cents', new.cents));
END;
CREATE TRIGGER IF NOT EXISTS deleted AFTER DELETE ON accounts BEGIN
    INSERT INTO outbox (id, row) VALUES (old.id, NULL);
END;
"""


def capture(database: sqlite3.Connection, log: tiered.Log) -> int:
    """Move the outbox into the topic. Return the number of changes."""
    topic = log.topic("accounts", create=True, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.1})
    moved = 0
    while rows := database.execute("SELECT number, id, row FROM outbox ORDER BY number LIMIT 1000").fetchall():
        changes = [tiered.NewRecord(row if row is None else row.encode(), id_.encode()) for _, id_, row in rows]
        topic.append_many(changes, durability="disk")
        with database:  # the log has them: the outbox may forget them
            database.execute("DELETE FROM outbox WHERE number <= ?", (rows[-1][0],))
        moved += len(rows)
    return moved


def main() -> None:
    database = sqlite3.connect(sys.argv[1])
    database.executescript(SCHEMA)
    with tiered.open(LOG_DIR, remote=REMOTE) as log:
        print(f"captured {capture(database, log)} changes")
        log.sync(timeout=60)
    with tiered.open_reader(REMOTE) as reader:  # any program rebuilds the table: the last record of a key is its row
        accounts = {record.key: record.value for record in reader.topic("accounts").read()}
    print(f"{sum(row is not None for row in accounts.values())} accounts in the bucket")


if __name__ == "__main__":
    main()
