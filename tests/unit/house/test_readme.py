"""What the README shows runs as it stands, and what is built holds what it should."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tiered.cli.main import tiered
from tiered.spark.commands import jobs
from uploader.cli import program as tiered_uploader

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
OWN = [block for block in BLOCKS if "pyspark" not in block]  # Spark's has a test of its own, with a server


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*/README.md"))]
SHOWN = sorted(
    {line for page in PAGES for line in re.findall(r"^\$ (tiered(?:-uploader)? .*)", page.read_text(), re.MULTILINE)}
)


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", text], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_python_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    assert len(OWN) >= 3
    for block in OWN:
        compile(block, "README.md", "exec")
        done = run(block.replace("file:///tmp/tieredlog-bucket", f"file://{tmp_path / 'bucket'}"), tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), f"{block}\n{done.stderr}"


@pytest.mark.parametrize("line", SHOWN)
def test_each_command_that_is_shown_is_one_with_its_options(line: str) -> None:
    words = shlex.split(re.split(r" +#| [|<>&]", line)[0])
    command: click.Command | None = {"tiered": tiered, "tiered-uploader": tiered_uploader}[words.pop(0)]
    if words[0] == "spark":  # a process of its own reads what follows
        command, words = jobs, words[1:]
    name: str | None = ""
    context = None
    while command is not None:
        context = command.make_context(name, words, parent=context, obj={})
        if not isinstance(command, click.Group):
            return
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize("name", ["aio.open", "errors.FencedError", "uploader.Uploader", "uploader.Settings"])
def test_names_that_come_with_import_tiered(name: str, tmp_path: Path) -> None:
    done = run(f"import tiered; print(tiered.{name})", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_import_tiered_alone_stays_light(tmp_path: Path) -> None:
    done = run("import tiered, sys; print({'numpy', 'asyncio', 'uploader', 'tiered.aio'} & set(sys.modules))", tmp_path)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("script", ["import tiered; tiered.uploader.Uploader()", "import tiered.uploader"])
def test_a_file_that_hides_the_package_is_named_and_not_run(tmp_path: Path, script: str) -> None:
    (tmp_path / "uploader.py").write_text("print('this is not what was asked for')\n")
    done = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {script}", tmp_path)
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert f"{tmp_path / 'uploader.py'} has the name of tieredlog's package" in done.stderr
    assert done.stdout == ""


def test_the_source_distribution_holds_the_packages_and_no_tests() -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist")
    files = {Path(each.relative_path).as_posix() for each in sdist.SdistBuilder(str(ROOT)).recurse_included_files()} - {
        ".gitignore"
    }
    assert {path.split("/")[0] for path in files} == {
        *("tiered", "uploader", "pyspark_tiered"),
        *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE"),
    }
    assert {"tiered/py.typed", "tiered/testing/faults.py", "uploader/cli.py"} <= files


def test_the_readme_of_the_package_links_to_no_file_of_the_repository() -> None:
    core = pytest.importorskip("hatchling.metadata.core")
    plugins = pytest.importorskip("hatchling.plugin.manager")
    metadata = core.ProjectMetadata(str(ROOT), plugins.PluginManager())
    text = metadata.core.readme
    assert metadata.core.readme_content_type == "text/markdown"
    assert text.startswith("# tieredlog\n")
    assert "are in docs/spark.md." in text
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("https://")] == []
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks == BLOCKS  # no code was taken for a link
