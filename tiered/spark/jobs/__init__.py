"""Maintenance, checks, erasures and exports of a bucket on Spark: workers get task descriptions and return receipts.

A worker reads and writes the bucket itself. Spark moves descriptions of tasks and their receipts, digests of keys in a
large compaction, and records only in an export. pandas is not needed.
"""

from __future__ import annotations
