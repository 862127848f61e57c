"""Wrong command lines, settings, URLs, credentials and inputs: one sentence, the next step, the right exit code.

Never a traceback, never a second sentence, never a byte of data. ``{d}`` is a log directory with the topic ``t`` of
two partitions, ``{b}`` its bucket, ``{x}`` an empty folder, ``{s3}`` an S3 server that refuses each bucket its own way.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.local.disk.lock import LOCK_NAME
from tiered.program import open_log, open_reader, open_store

REFUSALS = {
    "denied": (403, "AccessDenied", "no"),
    "absent": (404, "NoSuchBucket", "no such bucket"),
    "wrongkey": (403, "InvalidAccessKeyId", "unknown key"),
    "wrongsecret": (403, "SignatureDoesNotMatch", "bad signature"),
    "expired": (400, "ExpiredToken", "token expired"),
    "broken": (503, "ServiceUnavailable", "later"),
}


class Refuser(BaseHTTPRequestHandler):
    """Answers every request as its bucket's name says."""

    def answer(self) -> None:
        bucket = self.path.lstrip("/").split("/")[0].split("?")[0]
        status, code, message = REFUSALS[bucket]
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silent."""


@dataclass(frozen=True)
class Place:
    """The things that command lines are written with."""

    names: dict[str, str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    base = tmp_path_factory.mktemp("refusals")
    directory, bucket, empty = base / "log", base / "bucket", base / "empty"
    bucket.mkdir()
    empty.mkdir()
    with tiered.open(directory, f"file://{bucket}") as log:
        log.topic("t", partitions=2, create=True).append(b"value")
        log.sync(timeout=60)
    with tiered.open(base / "elsewhere", f"file://{base / 'other'}") as log:
        log.topic("t", create=True).append(b"of another log")
        log.sync(timeout=60)
    (base / "file").write_text("a file")
    (base / "photos" / "lost+found").mkdir(parents=True)
    (base / "photos" / "a.jpg").write_text("")
    (base / "image.log").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (base / "good.toml").write_text('region = "eu-central-1"\n')
    for name, content in CONFIGS.items():
        (base / f"{name}.toml").write_bytes(content)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuser)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    names = {
        "d": str(directory),
        "b": f"file://{bucket}",
        "other": f"file://{base / 'other'}",
        "x": str(empty),
        "base": str(base),
        "s3": f"http://127.0.0.1:{server.server_address[1]}",
    }
    try:
        yield Place(names)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


CONFIGS = {
    "typo": b'remot = "s3://bucket"\n',
    "secret": b'aws_secret_access_key = "x"\n',
    "kind": b"remote = 5\n",
    "flag": b'json = "perhaps"\n',
    "mode": b'progress = "plane"\n',
    "broken": b"remote = \n",
    "binary": b"\xff\xfe\x00",
    "variable": b'remote = "s3://${NO_SUCH_VARIABLE_HERE}/x"\n',
    "nothing": b'log_dir = ""\n',
    "twice": b'log_dir = "a"\nlog-dir = "b"\n',
}

# fmt: off
CASES: list[tuple[str, str, int, str, bytes]] = [
    # command lines
    ("unknown command", "catt t", 2, "there is no command tiered catt", b""),
    ("the other program", "uploader run", 2, "there is no command tiered uploader", b""),
    ("unknown subcommand", "topic lits", 2, "there is no command tiered topic lits", b""),
    ("unknown option", "cat t --form x", 2, "no such option '--form'", b""),
    ("missing argument", "cat --log-dir {d}", 2, "missing argument 'TOPIC[:P]'", b""),
    ("missing value", "cat t --log-dir", 2, "option '--log-dir' requires an argument", b""),
    ("too many arguments", "cat t u --log-dir {d}", 2, "got unexpected extra argument (u)", b""),
    ("no command", "", 2, "", b""),
    ("no subcommand", "topic", 2, "", b""),
    ("no log named", "cat t", 2, "no log was named", b""),
    ("no directory to write", "append t --remote {b}", 2, "no log directory was named", b""),
    ("no remote to wait for", "append t --log-dir {d} --durability remote", 2, "no remote tier was named", b"x"),
    ("no remote to restore", "restore --log-dir {x}/new", 2, "no remote tier was named", b""),
    ("not a number", "cat t --log-dir {d} -n many", 2, "invalid value for '-n' / '--limit'", b""),
    ("negative count", "cat t --log-dir {d} -n -1", 2, "invalid value for '-n' / '--limit'", b""),
    ("count of a bigger number", "cat t --log-dir {d} -n 9223372036854775808", 2, "invalid value for '-n'", b""),
    ("cut behind the end", "disk truncate t:0 9 --log-dir {d} --yes", 2, "at offset 9: it has offsets 0 to ", b""),
    ("rejoin an unknown partition", "repair rejoin t:77 --log-dir {d} --yes", 10, "holds no partition t-77", b""),
    ("repair from no directory", "repair --remote {b} --from-dir {x}/none --yes", 10, "there is no log directory", b""),
    ("delete a partition", "topic delete t:0 --log-dir {d} --yes", 2, "only a whole topic can be deleted", b""),
    ("repair an unknown topic", "repair tt --remote {b}", 10, "tt is not in the registry", b""),
    ("repair an unknown partition", "repair t:9 --remote {b}", 10, "topic t has no partition 9", b""),
    ("unknown progress mode", "status --log-dir {d} --progress pretty", 2, "invalid value for '--progress'", b""),
    ("unknown isolation", "cat t --log-dir {d} --isolation dirty", 2, "invalid value for '--isolation'", b""),
    # topics and partitions
    ("unknown topic", "cat tt --log-dir {d}", 10, "there is no topic 'tt'", b""),
    ("unknown topic in a bucket", "cat nothing --remote {b}", 10, "there is no topic 'nothing'", b""),
    ("unknown topic to append", "append nothing --log-dir {d}", 10, "there is no topic nothing", b"x"),
    ("unknown partition", "cat t:9 --log-dir {d}", 10, "topic t has no partition 9", b""),
    ("no text as topic", "cat '' --log-dir {d}", 2, "'' names no topic", b""),
    ("partition of no topic", "cat :0 --log-dir {d}", 2, "':0' names no topic", b""),
    ("cut of no topic", "disk truncate '' 5 --log-dir {d}", 2, "'' names no topic", b""),
    ("partition is a word", "cat t:first --log-dir {d}", 2, "'t:first' names no partition", b""),
    ("topic name", "topic create a/b --log-dir {x}/n", 2, "topic name 'a/b' is not allowed", b""),
    ("partition out of range", "append t:7 --log-dir {d}", 10, "topic t has no partition 7", b"x"),
    ("other partitions", "append t --log-dir {d} --create --partitions 5", 2, "topic t has 2 partitions, not 5", b"x"),
    ("partitions without create", "append t --log-dir {d} --partitions 2", 2, "--partitions and --set belong", b"x"),
    ("topic setting", "topic create n --log-dir {x}/n --set segment.bites=1", 2, "segment.bites", b""),
    ("topic setting value", "topic create n --log-dir {x}/n --set segment.ms=soon", 2, "'soon' is not", b""),
    ("topic setting twice", "topic create n --log-dir {x}/n --set a=1 --set a=2", 2, "--set a is given twice", b""),
    ("setting to change", "topic set t segment.ms --log-dir {d}", 2, "error: 'segment.ms' is not NAME=VALUE", b""),
    ("topic setting shape", "topic create n --log-dir {x}/n --set segment.ms", 2, "is not NAME=VALUE", b""),
    # places and times
    ("no such directory", "cat t --log-dir {x}/absent", 10, "does not exist", b""),
    ("directory is a file", "cat t --log-dir {base}/file", 2, "is a file, not a log directory", b""),
    ("no such folder of a bucket", "cat t --remote file://{x}/absent", 10, "does not exist", b""),
    ("append to no directory", "append t --log-dir {x}/absent", 10, "does not exist", b"x"),
    ("offset beyond the end", "cat t:0 --log-dir {d} --from 999", 14, "offset 999 is outside", b""),
    ("offset over partitions", "cat t --log-dir {d} --from 5", 2, "offsets differ by partition", b""),
    ("place is a word", "cat t:0 --log-dir {d} --from middle", 2, "'middle' is not a place in a log", b""),
    ("last and from", "cat t:0 --log-dir {d} --from 5 --last 1", 2, "--last and --from exclude each other", b""),
    ("last of a key", "cat t:0 --log-dir {d} --key k --last 1", 2, "--last and --key exclude each other", b""),
    ("follow to an end", "cat t:0 --log-dir {d} --to 5 -f", 2, "--follow and --to exclude each other", b""),
    ("offset too large", "cat t:0 --log-dir {d} --from 99999999999999999999", 2, "larger than any offset", b""),
    ("naive time", "cat t --log-dir {d} --from 2013-01-01T05:00", 2, "has no time zone", b""),
    ("time is a word", "cat t --log-dir {d} --from yesterday", 2, "'yesterday' is not a place", b""),
    ("time is microseconds", "cat t --log-dir {d} --from s@1700000000000000", 2, "after the year 9999", b""),
    ("year or milliseconds", "topic show t --log-dir {d} --at 2013", 2, "may be a year or milliseconds", b""),
    ("format", "cat t --log-dir {d} --template %q", 2, "the template holds '%q'", b""),
    ("format that is a name", "cat t --log-dir {d} --template csv", 2, "the template 'csv' names no field", b""),
    ("format without a field", "cat t --log-dir {d} --template 100%%", 2, "names no field", b""),
    ("format and json", "cat t --log-dir {d} --template %s --json", 2, "--template and --json exclude each other", b""),
    ("restore into a full directory", "restore --remote {b} --log-dir {d}", 2, "is not empty", b""),
    ("restore an unknown topic", "restore tt --remote {b} --log-dir {x}/n", 10, "there is no topic 'tt'", b""),
    ("restore to no name", "restore t --name '' --remote {b} --log-dir {x}/n", 2, "topic name '' is not allowed", b""),
    ("restore once", "restore --once --remote {b} --log-dir {x}/n", 2, "--once needs --follow", b""),
    ("restore with a rest", "restore --every 5s --remote {b} --log-dir {x}/n", 2, "--every needs --follow", b""),
    ("restore nothing", "restore --remote {b} --log-dir {x}/n --newest 0", 2, "keeps nothing", b""),
    ("restore a bad size", "restore --remote {b} --log-dir {x}/n --newest lots", 2, "'lots' is not a size", b""),
    ("check an unknown topic", "check tt --log-dir {d}", 10, "there is no topic 'tt' to check", b""),
    ("check a wrong prefix", "check --remote file://{x}", 10, "/empty holds no topics", b""),
    ("repair a wrong prefix", "repair --remote file://{x} --yes", 10, "/empty holds no topics", b""),
    ("snapshot of a wrong prefix", "snapshot create s --remote file://{x}", 10, "/empty holds no topics", b""),
    ("status of a wrong prefix", "status --remote file://{x}", 10, "/empty holds no topics", b""),
    ("dump an empty folder", "inspect {x}", 2, "holds no file that can be inspected", b""),
    ("dump nothing", "inspect {x}/none.log", 10, "does not exist", b""),
    ("dump what is no log file", "inspect {base}/good.toml", 2, "is not a file that can be inspected", b""),
    ("dump an absent object", "inspect {b}/none.log", 10, "does not exist", b""),
    ("export to no format", "export t {x}/t.txt --log-dir {d}", 2, "has no suffix of a known format", b""),
    ("export to a device", "export t /dev/null --format csv --log-dir {d} --yes", 2, "is a device or a pipe", b""),
    ("export to a folder", "export t {x} --log-dir {d}", 2, "is a folder", b""),
    ("export to no folder", "export t {x}/none/t.csv --log-dir {d}", 10, "the folder of", b""),
    ("a partition for a log", "cat t --log-dir {d}/t-0", 2, "is the directory of a partition, not of a log", b""),
    ("a log in a partition", "append u --create --log-dir {d}/t-0", 2, "is the directory of a partition", b"x"),
    ("export into the log", "export t {d}/t-0/t.csv --log-dir {d} --yes", 2, "has the files of the log", b""),
    ("export into the bucket", "export t {base}/bucket/t.csv --remote {b} --yes", 2, "has the files of the log", b""),
    ("export over a file", "export t {base}/file --format csv --log-dir {d}", 2, "/file?", b""),
    ("export an offset", "export t {x}/t.csv --from 3 --log-dir {d}", 2, "offsets differ by partition", b""),
    ("export to nothing", "export t '' --log-dir {d}", 2, "FILE is empty", b""),
    ("export to standard output", "export t - --format csv --log-dir {d}", 2, "not to standard output", b""),
    ("export an unknown topic", "export u {x}/t.csv --log-dir {d}", 10, "there is no topic", b""),
    # settings
    ("config file absent", "status --config {x}/none.toml --log-dir {d}", 10, "does not exist", b""),
    ("config key", "status --config {base}/typo.toml", 2, "the key remot is not known", b""),
    ("config secret", "status --config {base}/secret.toml", 2, "the key aws_secret_access_key is not known", b""),
    ("config kind", "status --config {base}/kind.toml", 2, "5 is not a text", b""),
    ("config flag", "status --config {base}/flag.toml", 2, "'perhaps' is neither true nor false", b""),
    ("config mode", "status --config {base}/mode.toml", 2, "'plane' is none of auto, plain", b""),
    ("config syntax", "status --config {base}/broken.toml", 2, "is not TOML", b""),
    ("config bytes", "status --config {base}/binary.toml", 2, "is not UTF-8", b""),
    ("config variable", "status --config {base}/variable.toml", 2, "needs the environment variable", b""),
    ("config twice", "status --config {base}/twice.toml", 2, "is given twice", b""),
    # URLs and credentials
    ("scheme", "cat t --remote s4://bucket/p", 2, "the scheme s4:// is not supported", b""),
    ("one slash", "cat t --remote s3:/bucket", 2, "is not followed by two slashes", b""),
    ("key in the URL", "cat t --remote s3://AKIA:secret@bucket/p", 2, "holds a user name or a key", b""),
    ("query in the URL", "cat t --remote s3://bucket/p?x=1", 2, "'x' in the query", b""),
    ("fragment in the URL", "cat t --remote s3://bucket/p#x", 2, "has a query or a fragment", b""),
    ("bucket name", "cat t --remote s3://Bad_Bucket!/p", 2, "ucket", b""),
    ("endpoint for a folder", "cat t --remote {b} --config {base}/good.toml", 2, "region (file", b""),
    ("endpoint", "cat t --remote s3://bucket?endpoint=ftp://x", 2, "ndpoint", b""),
    ("no credentials", "topic list --remote s3://denied?endpoint={s3}", 12, "no usable credentials", b""),
    ("denied", "KEYS topic list --remote s3://denied?endpoint={s3}", 12, "denied", b""),
    ("wrong key", "KEYS topic list --remote s3://wrongkey?endpoint={s3}", 12, "wrongkey", b""),
    ("wrong secret", "KEYS topic list --remote s3://wrongsecret?endpoint={s3}", 12, "wrongsecret", b""),
    ("expired", "KEYS topic list --remote s3://expired?endpoint={s3}", 12, "expired", b""),
    ("no such bucket", "KEYS topic list --remote s3://absent?endpoint={s3}", 10, "absent", b""),
    ("server down", "KEYS topic list --remote s3://bucket?endpoint=http://127.0.0.1:9", 75, "bucket", b""),
    ("server broken", "KEYS topic list --remote s3://broken?endpoint={s3}", 75, "broken", b""),
    # inputs
    ("no delimiter", "append t --log-dir {d} -K :", 2, "line 2 of the input has no key delimiter ':'", b"a:b\nc\n"),
    ("empty delimiter", "append t --log-dir {d} -K '' ", 2, "-K needs a delimiter", b"x"),
    ("bad delimiter", r"append t --log-dir {d} -K \xZZ", 2, "is no character code", b"x"),
    ("bad header", "append t --log-dir {d} -H trace", 2, "-H 'trace' is not K=V", b"x"),
    ("fields of lines", "append t --log-dir {d} --key-field k", 2, "need fields", b"x"),
    ("delimiter of json", "append t --log-dir {d} --format json -K :", 2, "-K belongs to lines", b"1"),
    ("json", "append t --log-dir {d} --format json", 2, "line 1 of the input is not JSON", b"{'a': 1}\n"),
    ("json number", "append t --log-dir {d} --format json", 2, "NaN is no JSON number", b"NaN\n"),
    ("json field", "append t --log-dir {d} --format json --key-field k", 2, "has no member 'k'", b'{"a": 1}\n'),
    ("json list", "append t --log-dir {d} --format json --key-field k", 2, "is no JSON object", b"[1]\n"),
    ("json time", "append t --log-dir {d} --format json --timestamp-field t", 2, "has a bad 't'", b'{"t": "soon"}\n'),
    ("json deep", "append t --log-dir {d} --format json", 2, "is not JSON", b"[" * 200_000 + b"\n"),
    ("csv columns", "append t --log-dir {d} --format csv", 2, "has 1 column where the header has 2", b"a,b\n1\n"),
    ("csv header", "append t --log-dir {d} --format csv", 2, "names the column 'a' twice", b"a,a\n1,2\n"),
    ("csv field", "append t --log-dir {d} --format csv --key-field k", 2, "has no column 'k'", b"a,b\n1,2\n"),
    ("csv bytes", "append t --log-dir {d} --format csv", 2, "is not UTF-8", b"a\n\xff\n"),
    ("csv quotes", "append t --log-dir {d} --format csv", 2, "is not CSV", b'a,b\n"1"x,2\n'),
    ("csv quote", "append t --log-dir {d} --format csv", 2, "line 2 of the input opens a quote", b'a,b\n1,"2\n3,4\n'),
    ("csv semicolons", "append t --log-dir {d} --format csv", 2, "the separator is a comma", b"a;b\n1;2\n"),
    ("csv tabs", "append t --log-dir {d} --format csv", 2, "holds tabs", b"a\tb\n"),
    ("append to a file", "append t --log-dir {base}/file", 2, "is a file, not a log directory", b"x"),
    ("create in a file", "topic create n --log-dir {base}/file", 2, "is a file, not a log directory", b""),
    ("status of a file", "status --log-dir {base}/file", 2, "is a file, not a log directory", b""),
    ("check a file", "check --log-dir {base}/file", 2, "is a file, not a log directory", b""),
    ("repair a file", "repair rejoin --log-dir {base}/file", 2, "is a file, not a log directory", b""),
    ("restore into a file", "restore --remote {b} --log-dir {base}/file", 2, "is a file, not a log directory", b""),
    ("no log directory", "cat t --log-dir {x}", 10, "is no log directory", b""),
    ("record too large", "append t --log-dir {d}", 2, "", b"x" * 2_000_000),
    ("bucket is a file", "cat t --remote file://{base}/file", 2, "is a file, not the folder of a store", b""),
    ("sealed into a file", "append t --log-dir {x}/n --create --remote {base}/file", 2, "is a file, not", b"x"),
    ("path through a file", "append t --create --log-dir {base}/file/n", 10, "Not a directory", b"x"),
    ("restore through a file", "restore --remote {b} --log-dir {base}/file/n", 10, "Not a directory", b""),
    ("a log among files", "append t --create --log-dir {base}/photos", 2, "not a log's, such as 'a.jpg'", b"x"),
    ("drop without a bucket", "disk drop t --log-dir {d} --yes", 2, "no remote tier was named", b""),
    ("another bucket", "check --log-dir {d} --remote {other}", 10, "topic t was uploaded from", b""),
    ("rejoin a healthy one", "repair rejoin t:0 --log-dir {d} --remote {b} --yes", 2, "neither fenced nor behind", b""),
    ("no text as directory", "append t --create --log-dir ''", 2, "--log-dir: it is empty", b"x"),
    ("no text as remote", "cat t --remote ''", 2, "--remote: it is empty", b""),
    ("empty endpoint", "cat t --remote s3://bucket?endpoint=", 2, "the query of the s3:// URL is empty", b""),
    ("no text as target", "restore --remote {b} --log-dir ''", 2, "--log-dir: it is empty", b""),
    ("no text to move to", "disk move t:0 '' --log-dir {d} --yes", 2, "DIR is empty", b""),
    ("config that is empty", "status --config {base}/nothing.toml", 2, "nothing.toml: it is empty", b""),
    ("until before since", "cat t --log-dir {d} --from 2013-01-01 --to 2012-01-01", 2, "is before --from", b""),
    ("end to beginning", "cat t --log-dir {d} --from end --to beginning", 2, "is before --from end", b""),
    ("no text to inspect", "inspect ''", 2, "a FILE is empty", b""),
    ("keys in a folder", "erase t --remote {b} --keys {x} --dry-run", 2, "is no file", b""),
    ("seconds that are none", "append t --log-dir {d} --timeout nan", 2, "'nan' is not a finite number", b"x"),
    ("rate that is none", "cost --records-per-second nan", 2, "'nan' is not a finite number", b""),
    ("rate without an end", "cost --records-per-second inf", 2, "inf is not in the range", b""),
    ("rate beyond all", "cost --records-per-second 1e300", 2, "1e+300 is not in the range", b""),
    ("ratio that is none", "cost --records-per-second 1 --ratio nan", 2, "'nan' is not a finite number", b""),
    ("negative size", "cost --records-per-second 1 --record-bytes -5", 2, "'-5' is less than 1", b""),
    ("no size", "cost --records-per-second 1 --record-bytes 0", 2, "'0' is less than 1", b""),
    ("count is a word", "cat t --log-dir {d} -n x", 2, "'x' is not a whole number", b""),
    ("seconds are a word", "append t --log-dir {d} --timeout x", 2, "'x' is not a number", b"x"),
    ("read no bucket", "check --log-dir {d} --read-data", 2, "--read-data needs a bucket", b""),
    ("metrics over a segment", "check --log-dir {d} --metrics {base}/image.log", 2, "does not end with .prom", b""),
    ("read all and a part", "check --remote {b} --read-data --read-data-subset 5%", 2, "exclude each other", b""),
    ("write to no bucket", "doctor --log-dir {d} --write-probe", 2, "--write-probe needs a bucket", b""),
    ("segments at a time", "topic show t --log-dir {d} --segments --at 2013-01-01", 2, "exclude each other", b""),
    ("coordinator's topic", "append __transaction_state --log-dir {d} --create", 10, "there is no __trans", b"x"),
    ("no standard input", "CLOSED append t --log-dir {d}", 2, "standard input is closed", b""),
]
# fmt: on


@pytest.mark.parametrize(("line", "code", "sentence", "stdin"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_one_sentence_and_the_exit_code(
    cli: Cli, place: Place, monkeypatch: pytest.MonkeyPatch, *, line: str, code: int, sentence: str, stdin: bytes
) -> None:
    for module in (open_reader, open_store, open_log):
        monkeypatch.setattr(module, "STORE_DEADLINE_SECONDS", 0.0)
    words = [word.strip("'").format(**place.names) for word in line.split()]
    if words and words[0] == "KEYS":
        words.pop(0)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecret")
        monkeypatch.setenv("AWS_REGION", "eu-central-1")
    closed = bool(words) and words[0] == "CLOSED"
    if closed:
        words.pop(0)
    done = cli(*words, stdin=stdin, closed=closed)
    assert done.code == code, done.err
    assert "--json" in words or done.out == b""
    assert "Traceback" not in done.err
    if len(words) < 2:
        assert done.err.startswith("Usage: tiered")
        return
    errors = [text for text in done.err.splitlines() if text.startswith("error: ")]
    assert len(errors) == 1, done.err
    assert sentence in errors[0]
    assert errors[0].count(". ") == 0
    assert "verysecret" not in done.err
    assert "AKIA:secret" not in done.err
    assert [text for text in done.err.splitlines() if text.startswith("  next: ")], done.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("cat", "t-1"), "did you mean partition t:1?"),
        (("disk", "truncate", "t-1", "0"), "write t:1"),
        (("disk", "truncate", "t", "0"), "write t:0"),
        (("repair", "rejoin", "t-1", "--yes"), "write t:1"),
        (("topic", "create", "u", "--config", "cleanup.policy=compact"), "--set NAME=VALUE"),
        (("topic", "create", "u", "--set", "log.retention.hours=1"), "did you mean retention.ms?"),
        (("cat", "t", "--from"), "see tiered cat --help"),
        (("export", "t", ""), "name the file to write"),
    ],
)
def test_hints(cli: Cli, place: Place, words: tuple[str, ...], hint: str) -> None:
    done = cli("--log-dir", place.names["d"], *words)
    assert done.code in (2, 10)
    assert hint in done.err


def test_a_locked_directory_names_its_holder(cli: Cli, tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True)
        refused = cli("append", "t", "--log-dir", tmp_path / "log", stdin=b"x")
        assert (tmp_path / "log" / LOCK_NAME).exists()
    assert refused.code == 11
    assert f"process {os.getpid()}" in refused.err


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("TIERED_REMOT", "s3://b", "the environment variable TIERED_REMOT is not known"),
        ("TIERED_LOGDIR", "x", "the environment variable TIERED_LOGDIR is not known"),
        ("TIERED_JSON", "perhaps", "neither true nor false"),
        ("TIERED_PROGRESS", "pretty", "is none of auto"),
        ("TIERED_REMOTE", "s5://x", "not supported"),
    ],
)
def test_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str) -> None:
    monkeypatch.setenv(variable, value)
    refused = cli("topic", "list")
    assert (refused.code, refused.out) == (2, b"")
    assert sentence in refused.err
