"""Bulk jobs over a bucket, spread by Spark: descriptors go to the workers, receipts come back, records stay away.

::

    driver   plan ──> jobs/{id}/plan.json          create-only: a restart under the same id adopts it
    workers  task ──> work ──> jobs/{id}/{phase}/{number}.json  create-only: done once, whoever does it
    driver   receipts ──> what is committed ──> jobs/{id}/receipt.json

A worker reads and writes the bucket itself. Through Spark go a task's description (an ``InputPartition``) and its
receipt (a ``RecordBatch`` of one row): no record passes the JVM, and pandas is not needed.
"""

from __future__ import annotations
