"""A log and tables of its records in a bucket of any S3 server; exports that are killed on their way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.spark.jobs.building import Result, records, run
from tiered.spark.jobs.export import Export

REGION = "us-east-1"
CATALOG, TABLE = "bulk", "lake.flights"
COUNT = 100


@dataclass(frozen=True)
class Lake:
    """``bucket`` of the server at ``endpoint``; the log below its ``log/``. Credentials are in the environment."""

    bucket: str
    endpoint: str

    @property
    def options(self) -> tuple[str, ...]:
        """Of a job."""
        return (
            *("--remote", f"s3://{self.bucket}/log", "--endpoint-url", self.endpoint),
            *("--region", REGION, "--json"),
        )

    def fill(self, folder: Path) -> None:
        """Makes the log, of records in several segments."""
        url = f"s3://{self.bucket}/log"
        with tiered.open(folder / "log", url, endpoint_url=self.endpoint, region=REGION) as log:
            topic = log.topic("flights", create=True, config={"segment.bytes": 2000})
            for at in range(0, COUNT, 20):
                topic.append_many(records(at, 20))
            log.sync(timeout=60)

    def export(self, kind: str, *more: str) -> Result:
        """One run of an export into the table of this kind."""
        where = ("--to", f"s3://{self.bucket}/{kind}")
        where += ("--catalog", CATALOG, "--table", TABLE) if kind == "iceberg" else ()
        return run("export", "flights", *self.options, "--format", kind, *where, "--task-bytes", "3KiB", *more)

    def export_twice_killed_once(self, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
        """The export, killed in a task, then under its id again; Iceberg's catalog lies in ``folder``."""
        config = pytest.importorskip("pyiceberg.utils.config").Config
        settings = {
            "TYPE": "sql",
            "URI": f"sqlite:///{folder}/catalog.db",
            "S3__ENDPOINT": self.endpoint,
            "S3__REGION": REGION,
        }
        for name, value in settings.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__{CATALOG.upper()}__{name}", value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", config())  # it is read once, at the first import
        work, calls = Export.work, list[int]()

        def once_killed(this: Export, *arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return work(this, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Export, "work", once_killed)
            assert self.export(kind, "--job", f"{kind}-1").code == 130
        return self.export(kind, "--job", f"{kind}-1")

    def offsets(self, kind: str) -> list[int]:
        """All offsets of the table, as another program reads it."""
        if kind == "delta":
            from deltalake import DeltaTable

            words = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": REGION, "AWS_ALLOW_HTTP": "true"}
            table = DeltaTable(f"s3://{self.bucket}/delta", storage_options=words).to_pyarrow_table()
        else:
            from pyiceberg.catalog import load_catalog

            table = load_catalog(CATALOG).load_table(TABLE).scan().to_arrow()
        return sorted(table["offset"].to_pylist())
