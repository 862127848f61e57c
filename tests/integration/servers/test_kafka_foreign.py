"""Odd batches before a real broker and Kafka's own consumer code: both say what is kept of them, and what we say."""

from __future__ import annotations

import base64
import itertools
import secrets
from pathlib import Path

import pytest

from tests.golden.foreign import Answer, OddBatch, golden_answers, odd_batches
from tests.golden.foreign_ours import appending, reading
from tests.integration.servers.commands import require
from tests.integration.servers.kafka_foreign import ask, read_by_kafka
from tiered.format.records import header_name

EDGES = bytes.fromhex("417f808f909fa0bfc0c1c2dfe0e1ecedeeeff0f1f3f4f5f7f8fdff")
"""Bytes at which a UTF-8 decoder changes its mind."""


@pytest.fixture(scope="module")
def golden() -> list[Answer]:
    return golden_answers()


@pytest.fixture(scope="module")
def asked(golden: list[Answer]) -> list[Answer]:
    """What is kept and batches of a new seed, in one go; the seed is in the names."""
    require("kafka")
    seed = secrets.randbelow(2**31)
    known = {answer.batch.name for answer in golden if not answer.batch.name.startswith("mutant")}
    fresh = [
        OddBatch(f"seed {seed}, {batch.name}", batch.data) for batch in odd_batches(seed) if batch.name not in known
    ]
    return ask([*(answer.batch for answer in golden), *fresh])


def test_what_is_kept_is_what_a_broker_says(golden: list[Answer], asked: list[Answer]) -> None:
    for kept, heard in zip(golden, asked, strict=False):
        assert heard.reads == kept.reads, kept.batch.name
        for topic, sent in kept.sent.items():
            assert heard.sent[topic].code == sent.code, (topic, kept.batch.name)
            if topic != "stamped" and sent.stored is not None:
                stored = heard.sent[topic].stored
                assert stored is not None
                assert stored[16:] == sent.stored[16:], (topic, kept.batch.name)


def test_we_read_what_kafkas_consumer_reads(asked: list[Answer]) -> None:
    assert [one for one in reading(asked) if not one.why] == []


def test_we_take_and_store_what_a_broker_takes_and_stores(asked: list[Answer], tmp_path: Path) -> None:
    assert [one for one in appending(tmp_path, asked) if not one.why] == []


def test_we_show_names_as_java_shows_them() -> None:
    require("kafka")
    names = [bytes(name) for size in (1, 2, 3) for name in itertools.product(EDGES, repeat=size)]
    names += [bytes(secrets.choice(EDGES) for _ in range(size)) for size in range(4, 9) for _ in range(4_000)]
    for name, answer in zip(names, read_by_kafka(names, "names"), strict=True):
        assert header_name(name) == base64.b64decode(answer).decode("utf-16-be"), name.hex()
