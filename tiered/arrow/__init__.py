"""Arrow: batches of a log -> Arrow record batches, and rows of Arrow's -> columns of records to append.

::

    from tiered.arrow import ArrowDecoder

    decoder = ArrowDecoder(TopicPartition("flights", 0), columns=("offset", "key", "value"))
    for found in decoder.record_batches((batch.header, batch.data) for batch in topic.stream(0).batches(0)):
        ...                                     # a pyarrow.RecordBatch of about 1 MiB

``Topic.read_batches``, ``Reader.to_arrow``, ``Topic.append_arrow`` and the Spark source and sink stand on it. Needs
``pyarrow`` (extra ``arrow``), imported at the first use; importing this module loads neither that nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tiered.arrow.schema import COLUMNS, RecordBatches, arrow_schema, arrow_table

if TYPE_CHECKING:
    from tiered.arrow.decoder import ArrowDecoder
    from tiered.arrow.rows import ArrowRows

__all__ = ["COLUMNS", "ArrowDecoder", "ArrowRows", "RecordBatches", "arrow_schema", "arrow_table"]

_LATER = {"ArrowDecoder": "tiered.arrow.decoder", "ArrowRows": "tiered.arrow.rows"}
"""Names whose modules load numpy."""


if not TYPE_CHECKING:  # a checker that saw it would take a misspelt name for one that it gives

    def __getattr__(name: str) -> Any:
        module = _LATER.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)
