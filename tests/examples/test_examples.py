"""Programs of ``examples/`` as their users start them, each on a bucket of its own. ``tests/spark`` runs the sixth."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.pages import ROOT, Reader
from tiered.cli.main import run

EXAMPLES = ROOT / "examples"
ORDERS = [{"customer": f"C-{at % 7}", "cents": 100 * at} for at in range(200)]
WAIT_SECONDS = 120


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'bucket'}"


@pytest.fixture
def environ(tmp_path: Path, url: str) -> dict[str, str]:
    place = {"TIERED_REMOTE": url, "TIERED_LOG_DIR": str(tmp_path / "log"), "PYTHONPATH": str(ROOT)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
    return {**kept, **place, "RESULTS": str(tmp_path / "totals.db")}


@contextlib.contextmanager
def started(environ: dict[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program of this interpreter. Kill it where the block leaves it running."""
    command, pipe = [sys.executable, "-W", "error", *words], subprocess.PIPE
    with subprocess.Popen(command, env=environ, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        try:
            yield program
        finally:
            program.kill()


def example(name: str, environ: dict[str, str], *options: str, given: str = "") -> str:
    """Return the output of a program that ends by itself."""
    with started(environ, str(EXAMPLES / name), *options) as program:
        out, err = program.communicate(given, timeout=WAIT_SECONDS)
        assert (program.returncode, err) == (0, "")
    return out


def as_lines(orders: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(order) + "\n" for order in orders)


def append_orders(tmp_path: Path, url: str, orders: list[dict[str, Any]]) -> None:
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("orders", create=True, partitions=3)
        topic.append_many([(json.dumps(order).encode(), order["customer"].encode()) for order in orders])
        log.sync(timeout=WAIT_SECONDS)


def values(url: str, topic: str) -> list[Any]:
    """Return the values in the bucket, decoded, by partition and offset."""
    with tiered.open_reader(url) as reader:
        return [json.loads(record.value) for record in reader.topic(topic).read() if record.value is not None]


def test_the_ingest_worker_goes_on_after_a_stop(tmp_path: Path, url: str, environ: dict[str, str]) -> None:
    rubbish = 'no order\n{"customer": 7, "cents": 1}\n{"customer": "C"}\n[]\n'
    said = example("ingest_worker.py", environ, given=as_lines(ORDERS) + rubbish)
    assert said == "appended 200 orders, skipped 4 other lines\n"
    last = {"customer": "C-0", "cents": 5}
    with started(environ, str(EXAMPLES / "ingest_worker.py")) as worker:
        assert worker.stdin is not None
        assert worker.stderr is not None
        worker.stdin.write(as_lines([last]))
        worker.stdin.flush()
        with tiered.open_reader(log_dir=tmp_path / "log") as reader:
            following = reader.topic("orders").read(follow=True)
            assert [json.loads(next(following).value or b"") for _ in range(201)][-1] == last
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr.read() == "stopping\n"
        assert worker.wait(WAIT_SECONDS) == 0
    found = values(url, "orders")
    for customer in {order["customer"] for order in ORDERS}:
        sent = [order for order in [*ORDERS, last] if order["customer"] == customer]
        assert [order for order in found if order["customer"] == customer] == sent
    assert len(found) == 201


def test_the_web_collector_answers_when_an_event_is_on_the_disk(url: str, environ: dict[str, str]) -> None:
    words = ["-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", "--no-access-log", "web_collector:app"]
    events = [{"page": f"/{at}", "seconds": at / 2} for at in range(20)]
    with started(environ, *words) as server:
        assert server.stderr is not None
        port = next(found[1] for line in server.stderr if (found := re.search(r"running on http://\S+:(\d+)", line)))
        connection = HTTPConnection("127.0.0.1", int(port), timeout=WAIT_SECONDS)

        def ask(verb: str, path: str, body: object = None) -> tuple[int, Any]:
            connection.request(verb, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        answers = [ask("POST", "/events/V-42", event) for event in events]
        partition = answers[0][1]["partition"]
        assert answers == [(201, {"partition": partition, "offset": at}) for at in range(20)]
        assert ask("POST", "/events/V-42", {"no": "page"})[0] == 422
        assert ask("GET", "/events?most=7") == (200, events[:7])
        assert ask("GET", "/events?since=rubbish")[0] == 400
        connection.close()
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
        assert server.wait(WAIT_SECONDS) in (0, -signal.SIGTERM)
    assert values(url, "events") == events


def test_the_group_worker_counts_no_order_twice(tmp_path: Path, url: str, environ: dict[str, str]) -> None:
    append_orders(tmp_path, url, ORDERS)
    assert example("group_worker.py", environ, "--until-end") == "handled 200 orders\n"
    append_orders(tmp_path, url, ORDERS[:10])
    assert example("group_worker.py", environ, "--until-end") == "handled 10 orders\n"
    assert run(["group", "reset", "billing", "orders", "--to", "beginning", "--remote", url, "--yes", "-q"]) == 0
    assert example("group_worker.py", environ, "--until-end") == "handled 210 orders\n"  # as after a lost commit
    sums: Counter[str] = Counter()
    for order in [*ORDERS, *ORDERS[:10]]:
        sums[order["customer"]] += order["cents"]
    results = sqlite3.connect(environ["RESULTS"])
    assert dict(results.execute("SELECT customer, cents FROM totals")) == sums
    results.close()


def test_the_change_capture_keeps_the_table_in_the_bucket(tmp_path: Path, url: str, environ: dict[str, str]) -> None:
    path = str(tmp_path / "accounts.db")
    assert example("change_capture.py", environ, path) == "captured 0 changes\n0 accounts in the bucket\n"
    database = sqlite3.connect(path)
    with database:
        database.executemany("INSERT INTO accounts VALUES (?, ?, ?)", [(f"A-{at}", "Ada", at) for at in range(1500)])
        database.execute("UPDATE accounts SET cents = 99 WHERE id = 'A-1'")
        database.execute("DELETE FROM accounts WHERE id = 'A-2'")
    assert example("change_capture.py", environ, path) == "captured 1502 changes\n1499 accounts in the bucket\n"
    assert example("change_capture.py", environ, path) == "captured 0 changes\n1499 accounts in the bucket\n"
    with tiered.open_reader(url) as reader:
        captured = {record.key: record.value for record in reader.topic("accounts").read()}
    table = {
        key.encode(): {"owner": owner, "cents": cents}
        for key, owner, cents in database.execute("SELECT * FROM accounts")
    }
    assert {key: json.loads(value) for key, value in captured.items() if value is not None} == table
    assert captured[b"A-2"] is None
    database.close()


def test_the_notebook_totals_the_orders(tmp_path: Path, url: str, environ: dict[str, str]) -> None:
    append_orders(tmp_path, url, ORDERS)
    cells = "names = runpy.run_path(sys.argv[1])"
    shown = "json.dumps([names['totals'].rows(), names['by_partition'].fetchall(), names['largest']])"
    words = [sys.executable, "-W", "error", "-c", f"import json, runpy, sys; {cells}; print({shown})"]
    done = subprocess.run([*words, EXAMPLES / "notebook.py"], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    totals, by_partition, largest = json.loads(done.stdout.splitlines()[-1])
    each = [[order["cents"] for order in ORDERS if order["customer"] == f"C-{number}"] for number in range(7)]
    rows = [[f"C-{number}", len(cents), sum(cents), max(cents)] for number, cents in enumerate(each)]
    assert totals == sorted(rows, key=lambda row: -row[2])
    with tiered.open_reader(url) as reader:
        found = [[json.loads(r.value or b"")["cents"] for r in reader.topic("orders").read(p)] for p in range(3)]
    assert by_partition == [[number, len(cents), sum(cents)] for number, cents in enumerate(found) if cents]
    assert largest == [[19_900]]


def test_the_page_shows_what_the_programs_print(tmp_path: Path, environ: dict[str, str]) -> None:
    reader = Reader(tmp_path, {"python examples": f"python {EXAMPLES}"})
    reader.environ = {**environ, **reader.environ}
    reader.follow(EXAMPLES / "README.md")
