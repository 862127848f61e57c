"""Conversion of a log's batches to Arrow record batches, and of Arrow data to records for an append.

::

    from tiered.arrow import ArrowDecoder

    decoder = ArrowDecoder(TopicPartition("flights", 0), columns=("offset", "key", "value"))
    for found in decoder.record_batches((batch.header, batch.data) for batch in topic.stream(0).batches(0)):
        ...                                     # a pyarrow.RecordBatch of about 1 MiB

``Topic.read_batches``, ``Reader.to_arrow``, ``Topic.append_arrow`` and the Spark source and sink use this package. It
needs ``pyarrow`` (extra ``arrow``). Importing this module loads neither pyarrow nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tiered.arrow.schema import COLUMNS, RecordBatches, arrow_schema, arrow_table

if TYPE_CHECKING:
    from tiered.arrow.decoder import ArrowDecoder, RecordBounds
    from tiered.arrow.rows import ArrowRows

__all__ = ["COLUMNS", "ArrowDecoder", "ArrowRows", "RecordBatches", "RecordBounds", "arrow_schema", "arrow_table"]

_LATER = {
    "ArrowDecoder": "tiered.arrow.decoder",
    "ArrowRows": "tiered.arrow.rows",
    "RecordBounds": "tiered.arrow.decoder",
}
"""Names whose modules load numpy, imported at first use."""


if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept misspelt names

    def __getattr__(name: str) -> Any:
        module = _LATER.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)
