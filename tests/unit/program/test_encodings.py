"""Input in other encodings, with other separators and line ends: right, or one sentence. Never records full of NULs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli

TEXT = "k1\tGrüße\nk2\tJürgen €\n"
DOCUMENTS = '{"id":"k1","v":"Grüße"}\n{"id":"k2","v":"Jürgen €"}\n'
TABLE = "id,v\nk1,Grüße\nk2,Jürgen €\n"
SHAPES = {
    "lines": (TEXT, ("-K", r"\t")),
    "json": (DOCUMENTS, ("--format", "json", "--key-field", "id")),
    "csv": (TABLE, ("--format", "csv", "--key-field", "id")),
}
WIDE = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]


def records(log: Path) -> list[tuple[bytes | None, bytes | None]]:
    with tiered.open_reader(log_dir=log) as reader:
        return [(record.key, record.value) for record in reader.topic("t").read()]


def texts(log: Path, shape: str) -> list[tuple[str, str]]:
    """Key and text of each record, whatever shape its value has."""
    found = [((key or b"").decode(), (value or b"").decode()) for key, value in records(log)]
    return [(key, value if shape == "lines" else json.loads(value)["v"]) for key, value in found]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("encoding", WIDE)
def test_a_wide_encoding_is_refused(tmp_path: Path, cli: Cli, shape: str, encoding: str) -> None:
    text, options = SHAPES[shape]
    call = ("append", "t", "--log-dir", tmp_path / "log", "--create", *options)
    refused = cli(*call, stdin=text.encode(encoding))
    assert refused.code == 2
    mark = encoding in ("utf-16", "utf-32")
    why = f"begins with the byte order mark of {encoding.upper()}" if mark else "holds NUL characters, as UTF-16 and"
    assert refused.err.startswith(f"error: line 1 of the input {why}")
    assert "next: convert it first: iconv -f UTF-" in refused.err
    assert ("--binary" in refused.err) == (shape == "lines")  # the other formats refuse this option
    assert records(tmp_path / "log") == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_text_is_utf_8(tmp_path: Path, cli: Cli, shape: str, encoding: str) -> None:
    text, options = SHAPES[shape]
    call = ("append", "t", "--log-dir", tmp_path / "log", "--create", *options)
    assert cli(*call, stdin=text.encode(encoding)).code == 0
    assert texts(tmp_path / "log", shape) == [("k1", "Grüße"), ("k2", "Jürgen €")]


def test_lines_of_bytes_are_appended_as_they_are(tmp_path: Path, cli: Cli) -> None:
    lines = [b"\xff\xfe\0x", b"a\0b", b"\xef\xbb\xbf", bytes(range(11, 256))]
    call = ("append", "t", "--log-dir", tmp_path / "log", "--create")
    assert cli(*call, "--binary", stdin=b"\n".join(lines) + b"\n").code == 0
    assert [value for _, value in records(tmp_path / "log")] == lines


@pytest.mark.parametrize(
    ("options", "stdin", "sentence", "hint"),
    [
        (("--binary", "--format", "csv"), b"a\n", "--binary belongs to lines", "leave --binary out"),
        (("-0", "--format", "csv"), b"a\n", "-0 belongs to lines and json, not to csv", "leave -0 out"),
        (("--delimiter", ";"), b"a\n", "--delimiter belongs to csv, not to lines", "add --format csv; -K separates"),
        (("--delimiter", ";;", "--format", "csv"), b"a\n", "--delimiter is one character", "for example ';'"),
        (("--format", "csv"), b"a;b\n1;2\n", "line 1 of the input is one column", "add --delimiter ';'"),
        (("--format", "csv"), b"a\tb\n", "line 1 of the input is one column", r"add --delimiter '\t'"),
        (("--format", "csv"), b"a,b\r1,2\r", "line 1 of the input holds a CR that ends no line", r"tr '\r' '\n'"),
        (("--format", "csv"), b"a\n\xfc\n", "line 2 of the input is not UTF-8 at byte 0", "iconv -f LATIN1"),
        ((), b"a\rb\r", "line 1 of the input holds a CR that ends no line", "--binary appends it as one"),
        (("-K", ":"), b"a:1\rb:2", "line 1 of the input holds a CR that ends no line", r"tr '\r' '\n'"),
        (("--format", "json"), b'{"a":1}\r{"a":2}\r', "line 1 of the input is not JSON", r"tr '\r' '\n'"),
        (
            ("--format", "json", "--timestamp-field", "at"),
            b'{"at":1357016400}\n',
            "line 1 of the input has a bad 'at': the time 1357016400 can only be seconds",
            "times are milliseconds: write 1357016400000",
        ),
    ],
)
def test_one_sentence(
    tmp_path: Path, cli: Cli, options: tuple[str, ...], stdin: bytes, sentence: str, hint: str
) -> None:
    refused = cli("append", "t", "--log-dir", tmp_path / "log", "--create", *options, stdin=stdin)
    first, second = refused.err.splitlines()
    assert first.startswith(f"error: {sentence}")
    assert hint in second
    assert (refused.code, refused.out) == (2, b"")


def test_a_line_with_a_cr_or_in_latin_1_is_appended_as_it_is(tmp_path: Path, cli: Cli) -> None:
    inputs = ((), b"a\rb\n"), ((), b"a\nb\rc"), (("--binary",), b"a\rb"), (("-0",), b"a\rb"), ((), b"h\xe4\n")
    for options, stdin in inputs:
        assert cli("append", "t", "--log-dir", tmp_path / "log", "--create", *options, stdin=stdin).code == 0
    assert [value for _, value in records(tmp_path / "log")] == [b"a\rb", b"a", b"b\rc", b"a\rb", b"a\rb", b"h\xe4"]


@pytest.mark.parametrize(("separator", "given"), [(";", ";"), ("\t", r"\t"), ("|", "|"), ("\x01", r"\x01")])
def test_a_csv_with_another_separator(tmp_path: Path, cli: Cli, separator: str, given: str) -> None:
    text = f'a{separator}b\r\n1{separator}"x{separator}y"\r\n'
    call = ("append", "t", "--log-dir", tmp_path / "log", "--create", "--format", "csv", "--delimiter", given)
    assert cli(*call, stdin=text.encode()).code == 0
    assert json.loads(records(tmp_path / "log")[0][1] or b"") == {"a": "1", "b": f"x{separator}y"}


def test_a_byte_order_mark_before_the_settings(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "tiered.toml"
    file.write_bytes(b"\xef\xbb\xbf" + f'log_dir = "{tmp_path / "log"}"\n'.encode())
    assert cli("append", "t", "--create", "--config", file, stdin=b"v\n").code == 0
    file.write_bytes(file.read_text("utf-8-sig").encode("utf-16"))
    refused = cli("cat", "t", "--config", file)
    assert refused.err == f"error: the configuration file {file} is not UTF-8 at byte 0\n  next: save it as UTF-8\n"


def test_a_file_of_keys_in_another_encoding(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "keys"
    for encoding, why in (("utf-16", "is not UTF-8 at byte 0"), ("utf-16-le", "holds NUL characters, as UTF-16 does")):
        file.write_bytes("k1\nk2\n".encode(encoding))
        refused = cli("erase", "t", "--keys", file, "--remote", (tmp_path / "bucket").as_uri(), "--dry-run")
        assert (refused.code, refused.err.splitlines()[0]) == (2, f"error: --keys {file} {why}")


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_seconds_on_the_command_line(tmp_path: Path, cli: Cli, option: str) -> None:
    assert cli("append", "t", "--log-dir", tmp_path / "log", "--create", stdin=b"v\n").code == 0
    refused = cli("cat", "t", "--log-dir", tmp_path / "log", option, "s@1357016400")
    assert refused.code == 2
    assert "1357016400 can only be seconds\n  next: times are milliseconds: write 1357016400000" in refused.err
