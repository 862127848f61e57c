"""An application that does what its standard input says: one command a line, one line of JSON as the answer.

``python -m tests.integration.fencing.application LOG_DIR REMOTE NAME [--endpoint URL] [--component] [--retry SECONDS]
[--timestamp MS]``

Commands: ``append N`` (N records, each fsynced before it is answered: offsets and values), ``sync SECONDS`` (the
committed end), ``end`` (closes and ends). An error of the product is answered as its ``as_json``; the application goes
on, as a user's would. The first line tells how the log was opened.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import tiered
from tiered.errors import TieredError
from tiered.topic import Topic

TOPIC = "t"
CONFIG = {"segment.bytes": 4096, "segment.index.bytes": 1024}


def main() -> int:
    """Until ``end``, or the end of standard input; the exit status of the error that kept the log from opening."""
    parser = argparse.ArgumentParser()
    parser.add_argument("log_dir")
    parser.add_argument("remote")
    parser.add_argument("name")
    parser.add_argument("--endpoint")
    parser.add_argument("--component", action="store_true")
    parser.add_argument("--retry", type=float, default=5.0)
    parser.add_argument("--timestamp", type=int)
    given = parser.parse_args()
    component = None
    if given.component:
        from uploader import Uploader  # its own libraries cost a second

        component = Uploader()
    try:
        log = tiered.open(
            given.log_dir,
            remote=given.remote,
            endpoint_url=given.endpoint,
            uploader=component,
            deadline_seconds=given.retry,
        )
        with log:
            topic = log.topic(TOPIC, create=True, config=CONFIG)
            _say({"end_offset": topic.positions(0).end_offset})
            _serve(log, topic, given.name, given.timestamp)
    except TieredError as error:
        _say(error.as_json())
        return error.exit_code
    return 0


def _serve(log: tiered.Log, topic: Topic, name: str, timestamp: int | None) -> None:
    number = 0
    for line in sys.stdin:
        verb, *words = line.split()
        try:
            if verb == "end":
                return
            if verb == "append":
                acked = []
                for _ in range(int(words[0])):
                    value = f"{name}.{number}"
                    number += 1
                    body = value.encode().ljust(100, b".")
                    acked.append([topic.append(body, timestamp=timestamp, durability="disk").offset, value])
                _say({"acked": acked})
            else:
                log.sync(timeout=float(words[0]))
                _say({"uploaded_offset": topic.positions(0).uploaded_offset})
        except TieredError as error:
            _say(error.as_json())


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
