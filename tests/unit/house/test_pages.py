"""README.md and the pages of docs: each block runs as it stands, and a build holds what it should."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import tiered
from tests.support.pages import ROOT, Reader, blocks, pages, python_blocks, shown_commands
from tiered import NewRecord
from tiered.cli.main import tiered as tiered_command
from tiered.spark import options, write_options
from tiered.spark.commands import jobs
from uploader.cli import program as tiered_uploader

PAGES = [page for page in pages() if page.name not in ("spark.md", "5-spark.md") and "tutorial" not in page.parts]
TUTORIAL = sorted((ROOT / "docs" / "tutorial").glob("[1-4]-*.md"))


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", text], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the log directory and bucket with which the pages begin: topics ``flights`` and ``users``."""
    folder = tmp_path_factory.mktemp("prepared")
    with tiered.open(folder / "data" / "log", remote=f"file://{folder / 'bucket'}") as log:
        for name, key in (("flights", b"N14228"), ("users", b"alice@example.org")):
            values = [NewRecord(b"%d" % at, key if at % 10 == 0 else b"K%d" % at) for at in range(60)]
            log.topic(name, partitions=3, create=True).append_many(values)
        log.sync(timeout=60)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if any(block.runs for block in blocks(page))], ids=str)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(page: Path, prepared: Path, tmp_path: Path) -> None:
    for name in ("data", "bucket"):
        shutil.copytree(prepared / name, tmp_path / name)
    bucket = f"file://{tmp_path / 'bucket'}"
    Reader(tmp_path, {"file:///tmp/tieredlog-bucket": bucket, "s3://acme-logs/prod": bucket}).follow(page)


@pytest.mark.long
def test_the_tutorial_runs_from_its_first_part_on(tmp_path: Path) -> None:
    """With moto in the place of MinIO, which takes minutes to build."""
    moto = f"{ROOT / 'localstack' / 'moto'} --port 0 --dir {tmp_path / 'moto'}".replace(" ", " start ", 1)
    try:
        reader = Reader(tmp_path, {"localstack/minio start": moto})
        for page in TUTORIAL:
            reader.follow(page)
    finally:
        subprocess.run([ROOT / "localstack" / "moto", "stop", "--dir", tmp_path / "moto"], check=False)


def test_each_link_of_a_page_leads_to_a_file() -> None:
    sources = [*pages(), *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))]
    links = {(page, link) for page in sources for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())}
    made = {"explanation/architecture.md"}  # by docs/generate.py
    lost = [f"{page}: {link}" for page, link in links if not (page.parent / link).exists()]
    assert [each for each in lost if not each.endswith(tuple(made))] == []


def test_pages_and_manifests_name_this_release() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version == tiered.__version__
    assert f"Version {version}," in (ROOT / "README.md").read_text()
    assert f"tieredlog-{version}-" in (ROOT / "docs" / "how-to" / "upgrade.md").read_text()
    places = [*(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "docs").rglob("*.md")]
    tags = {tag for path in places for tag in re.findall(r"\b(?:tieredlog:|newTag: )(\S+)", path.read_text())}
    assert tags == {version}


def test_the_page_of_spark_options_has_them_all() -> None:
    text = (ROOT / "docs" / "reference" / "spark-options.md").read_text()
    names = {*options.NAMES, *options.STREAM.names, *write_options.NAMES}
    assert {name for name in names if f"`{name}`" not in text} == set()


@pytest.mark.parametrize("line", shown_commands())
def test_each_command_that_is_shown_is_one_with_its_options(line: str) -> None:
    words = shlex.split(re.split(r" +#| [|<>&]", line)[0])
    command: click.Command | None = {"tiered": tiered_command, "tiered-uploader": tiered_uploader}[words.pop(0)]
    if words == ["--version"]:  # click prints it and exits while it parses; each program has the option
        return
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
    assert "Architecture has the details." in text
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("https://")] == []
    found = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found == python_blocks(ROOT / "README.md")  # no code was taken for a link
