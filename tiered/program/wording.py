"""Advice of the library in the words of the command line: a keyword argument means nothing to who typed an option."""

from __future__ import annotations

from tiered.errors import TieredError

WORDS = (
    ("create=True makes it", "--create makes it (append, topics create)"),
    ("create=True makes one", "`tiered topics create` makes one"),
    ("restore rebuilds a lost one", "`tiered restore` rebuilds a lost one"),
    ("leave partitions out", "leave --partitions out"),
    ("leave config out", "leave --set out"),
    ("give the server as endpoint_url= and", "give the server as --endpoint-url and"),
    ("options are arguments: endpoint_url=, region=", "the options are --endpoint-url and --region"),
    ("open(path, remote=...)", "pass --remote URL"),
    ("open the directory read-only", "read with cat, tail or status, which take no lock"),
    ("call sync(), pass uploader=Uploader() to open, or run tiered-uploader", "run tiered-uploader"),
)
"""What the library says, and what it is called here."""

KAFKA_OPTIONS = {
    "--bootstrap-server": "there is no broker: --log-dir names a directory, --remote a bucket",
    "--from-beginning": "cat begins at the beginning; -o WHERE begins elsewhere",
    "--isolation-level": "write --isolation",
    "--max-messages": "write -n N",
    "--partition": "write TOPIC:P",
    "--replication-factor": "leave it out: a partition is on one disk, and in the bucket",
    "--topic": "the topic is an argument: TOPIC or TOPIC:P",
}
"""Options of Kafka's tools that a command may lack, and what takes their place."""


def in_cli_words(error: TieredError) -> None:
    """Puts the error's hint, in place, into options and commands."""
    for library, ours in WORDS:
        error.hint = error.hint.replace(library, ours)
