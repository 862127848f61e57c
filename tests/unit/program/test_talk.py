"""What a person reads: help as it was laid out, sentences in the command line's own words, how a run says it ended."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.cli import append
from tiered.cli.main import COMMANDS
from tiered.cli.main import tiered as tiered_program
from tiered.program.command_line import WORDS
from tiered.program.output import Output
from tiered.spark.commands import jobs
from uploader.cli import program as uploader_program


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append_many([b"%d" % i for i in range(30)])
    return tmp_path / "log"


@pytest.mark.parametrize("line", [(), ("topic",), ("repair",)])
def test_a_group_alone_prints_its_help_as_it_is(cli: Cli, line: tuple[str, ...]) -> None:
    alone, asked = cli(*line), cli(*line, "--help")
    assert (alone.code, alone.out, asked.code) == (2, b"", 0)
    assert alone.err == asked.text
    assert ("\n\nCommands:\n" if line else "\n\nRecords:\n") in alone.err


def test_examples_stand_on_lines_of_their_own(cli: Cli) -> None:
    names = [[name] for name in COMMANDS]
    names += [["topic", name] for name in ("list", "create", "show", "set", "delete", "transfer")]
    names += [["repair", "rejoin"], ["repair", "TOPIC[:P]"]]
    for line in names:
        shown = cli(*line, "--help").text
        assert "\\b" not in shown
        assert "\b" not in shown
        if "\nCommands:\n" not in shown:
            assert shown.partition("Example")[2].split("\n")[1].startswith("    tiered ") or line == ["append"], line


BANNED = re.compile(r"\b(tells?|told|anew|nobody|somebody|whoever|let go of|what lies|as far as)\b", re.IGNORECASE)


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            assert below is not None
            yield from helps(below, f"{name} {word}")


def test_a_help_has_plain_words_and_ends_with_the_exit_codes() -> None:
    shown = {name: text for program in (tiered_program, jobs, uploader_program) for name, text in helps(program, "x")}
    assert len(shown) > 40
    for name, text in shown.items():
        assert BANNED.findall(text) == [], name
        assert text.split("\n\n")[-1].startswith("Exit codes:\n  0 "), name


def test_a_letter_means_one_thing() -> None:
    meanings: dict[str, set[str]] = {}

    def look(command: click.Command) -> None:
        for option in command.params:
            short = [word for word in option.opts if len(word) == 2]
            if short:
                meanings.setdefault(short[0], set()).add(max(option.opts, key=len))
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                below = command.get_command(click.Context(command), name)
                assert below is not None
                look(below)

    look(tiered_program)
    assert {letter: names for letter, names in meanings.items() if len(names) > 1} == {}
    assert (meanings["-n"], meanings["-f"], "-o" in meanings) == ({"--limit"}, {"--follow"}, False)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("cat t --hex", "see tiered cat --help"),
        ("uploader run", "did you mean tiered-uploader?"),
        ("cat t --jsn", "did you mean --json?"),
        ("topics list", "did you mean topic?"),
        ("append nothing --log-dir {d}", "--create makes it"),
        ("append t --create --partitions 5 --log-dir {d}", "leave --partitions out"),
        ("append t --create --set segment.ms=1h --log-dir {d}", "leave --set out"),
        ("cat t --remote https://server/bucket", "s3://bucket/prefix?endpoint=http://host:port"),
        ("cat t --remote s3://bucket/p?regoin=1", "its words are endpoint, region"),
    ],
)
def test_hints_use_the_words_of_the_command_line(cli: Cli, directory: Path, line: str, hint: str) -> None:
    refused = cli(*line.format(d=directory).split(), stdin=b"x\n")
    assert hint in refused.err
    assert "Did you mean one of" not in refused.err
    for word in ("create=True", "endpoint_url=", "leave partitions", "leave config"):
        assert word not in refused.err


def test_an_interrupted_append_says_what_was_appended(
    cli: Cli, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        drained = is_one = False

        def __init__(self, *_: object, **__: object) -> None:
            self.number = 0

        def __iter__(self) -> Interrupted:
            return self

        def __next__(self) -> bytes:
            self.number += 1
            if self.number > append.CHUNK_RECORDS:
                raise KeyboardInterrupt
            return b"x"

    monkeypatch.setattr(append, "LineSource", Interrupted)
    stopped = cli("append", "t", "--log-dir", directory, "--json")
    assert (stopped.code, stopped.err) == (130, "interrupted: 1,000 records of the input were appended\n")
    assert (stopped.summary["records"], stopped.summary["complete"]) == (1000, False)


def test_a_follower_has_no_end_to_come_before(cli: Cli, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: Output) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Output, "need_reader", stop)
    followed = cli("cat", "-f", "t", "--log-dir", directory)
    assert (len(followed.out.split()), followed.err) == (30, "interrupted after 30 records\n")


def test_each_translated_phrase_stands_in_a_hint_of_the_library() -> None:
    library = Path(tiered.__file__).parent
    files = [path for path in library.rglob("*.py") if path.name != "command_line.py"]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert [phrase for phrase, _ in WORDS if not any(phrase in text for text in texts)] == []
