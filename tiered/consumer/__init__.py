"""Consumers: records of several topics as one stream, with positions that are stored for the next process.

::

    consumer = log.consumer("billing", "orders")
       ├── Assignment: its partitions, and the store of their positions        consumer.assignment
       └── fetches of both tiers, one per partition                            read.fetch

A consumer of ``Log.consumer`` reads all partitions of its topics, and its positions are stored in the log.
"""
