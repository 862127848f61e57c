"""A stream source whose log grows right after its query has asked where to begin. Importable by Spark's workers."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from tests.unit.remote.building import RemoteLog
from tiered.spark.source import TieredDataSource
from tiered.spark.stream import TieredStreamReader
from tiered.store.directory import DirectoryStore
from tiered.testing.clock import SeededIds

MORE = 5
"""Records that are appended."""


class RacingSource(TieredDataSource):
    """``format("tiered-racing")``."""

    @classmethod
    def name(cls) -> str:
        return "tiered-racing"

    def streamReader(self, schema: StructType) -> TieredStreamReader:
        reader = super().streamReader(schema)
        return RacingReader(reader._options, schema)


class RacingReader(TieredStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        asked_before = self._initial is not None
        found = super().initialOffset()
        if not asked_before:
            path = self._options.read.path
            assert path is not None
            log = RemoteLog(DirectoryStore(path), ids=SeededIds(77))  # other names than those of the test
            root = log.root
            assert root is not None
            log.fill(root.next_offset + MORE, start=root.next_offset)
        return found
