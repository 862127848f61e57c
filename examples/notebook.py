"""Notebook: the orders of a bucket in polars and in DuckDB. Each `# %%` is a cell in Jupyter, VS Code and PyCharm.

    $ pip install polars duckdb
    $ python examples/notebook.py

Both libraries take Arrow as it is: no record becomes a Python object.
"""

# %% Read. `columns` leaves out what is not needed, `since="-7d"` and `until=` choose a time.
import os

import duckdb
import polars as pl

import tiered

REMOTE = os.environ.get("TIERED_REMOTE", "file:///tmp/tieredlog-bucket")

with tiered.open_reader(REMOTE) as reader:
    records = reader.to_arrow("orders", columns=["partition", "offset", "timestamp", "key", "value"])

# %% polars. Keys and values are bytes: decode them, then parse the JSON.
fields = pl.Struct({"customer": pl.String, "cents": pl.Int64})
orders = (
    pl.DataFrame(records)
    .with_columns(pl.col("value").cast(pl.String).str.json_decode(fields))
    .unnest("value")
    .select("timestamp", "customer", "cents")
)
totals = (
    orders.group_by("customer")
    .agg(orders=pl.len(), cents=pl.sum("cents"), largest=pl.max("cents"))
    .sort("cents", descending=True)
)
print(totals)

# %% DuckDB. It finds the Arrow table by the name of its variable.
by_partition = duckdb.sql("""
    SELECT "partition", count(*) AS orders, sum((decode(value)::JSON->>'cents')::BIGINT)::BIGINT AS cents
    FROM records
    GROUP BY ALL
    ORDER BY ALL
""")
print(by_partition)

# %% A topic that does not fit in memory: DuckDB pulls record batches of about 1 MiB, one after the other.
with tiered.open_reader(REMOTE) as reader:
    stream = reader.topic("orders").read_batches(columns=["value"])
    largest = duckdb.execute("SELECT max((decode(value)::JSON->>'cents')::BIGINT) AS largest FROM stream").fetchall()
print("largest order:", largest[0][0])
