"""The table of settings is the only one: the sample file, the help and the defaults of the daemon come from it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.support.pages import ROOT
from tiered.engine.drain import DrainMode
from tiered.program.settings import DAEMON, SETTINGS, Setting, resolve
from uploader import config
from uploader.cli import program

SAMPLE = runpy.run_path(str(ROOT / "scripts" / "sample_settings.py"))["sample_file"]()


def test_the_sample_file_is_generated() -> None:
    assert (ROOT / "deploy" / "tieredlog.toml").read_text() == SAMPLE, "run scripts/sample_settings.py"


def test_both_programs_accept_the_sample_file(tmp_path: Path) -> None:
    whole = tmp_path / "whole.toml"
    whole.write_text(re.sub(r"^# (\w+ = )", r"\1", SAMPLE, flags=re.MULTILINE))
    assert len(re.findall(r"^\w+ = ", whole.read_text(), re.MULTILINE)) == len(SETTINGS) + len(DAEMON)
    assert resolve({}, {}, whole)["region"].source == "file"
    assert config.resolve({}, {}, whole).sidecar_compacted == ("users", "prices")


@pytest.mark.parametrize("setting", DAEMON, ids=lambda setting: setting.name)
def test_a_default_of_the_table_is_the_daemons(setting: Setting) -> None:
    value = getattr(config.Settings(), setting.name)
    if setting.default is None:
        assert value in (None, ())
        return
    found = setting.parse(setting.default)
    assert (DrainMode(found) if setting.name == "drain" else found) == value


@pytest.mark.parametrize("setting", [*SETTINGS, *DAEMON], ids=lambda setting: f"{setting.table}.{setting.name}")
def test_a_setting_has_one_sentence_and_a_kind(setting: Setting) -> None:
    assert setting.kind
    assert 2 <= len(setting.about.split()) <= 20
    assert setting.default is not None or setting.example
    if setting.table and setting.has_option:
        helps = [option.help for option in program.commands["run"].params if option.name == setting.name]
        assert helps == [setting.help]
