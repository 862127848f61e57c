"""The two words of the AWS command line that receipts of erasures hold, on boto3: put into PATH as ``aws``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import jmespath


def main(arguments: Sequence[str]) -> None:
    """``s3api list-object-versions`` prints what ``--query`` takes of it, ``s3api delete-objects`` deletes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("service", choices=["s3api"])
    parser.add_argument("word", choices=["list-object-versions", "delete-objects"])
    for name in ("bucket", "endpoint-url", "region", "prefix", "query", "output", "delete"):
        parser.add_argument(f"--{name}")
    asked = parser.parse_args(arguments)
    s3: Any = boto3.client("s3", endpoint_url=asked.endpoint_url, region_name=asked.region)
    if asked.word == "list-object-versions":
        found = s3.list_object_versions(Bucket=asked.bucket, Prefix=asked.prefix)
        print(json.dumps(jmespath.search(asked.query, found)))
        return
    named = json.loads(Path(asked.delete.removeprefix("file://")).read_text())
    answer = s3.delete_objects(Bucket=asked.bucket, Delete=named)
    if answer.get("Errors"):
        raise SystemExit(str(answer["Errors"]))


def run_lines(lines: Sequence[str], folder: Path) -> None:
    """Runs shell commands in ``folder`` that call ``aws``. Raises CalledProcessError."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "aws"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} "$@"\n')
    program.chmod(0o755)
    around = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    for line in lines:
        subprocess.run(line, shell=True, check=True, cwd=folder, env=around, capture_output=True, text=True)


if __name__ == "__main__":
    main(sys.argv[1:])
