"""Consumers: records of several topics as one stream, with positions that outlive the process.

::

    consumer = log.consumer("billing", "orders")
       ├── Assignment: which partitions, and where their positions are kept    consumer.position
       └── fetches of both tiers, one per partition                            read.fetch

``Log.consumer`` reads all partitions of its topics and keeps its positions in the log.
"""
