"""Prometheus metrics in a registry of their own. Figures of the state and the store are read at each scrape."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tiered import __version__
from tiered.clock import Clock, SystemClock
from tiered.engine.status import PartitionView
from tiered.metrics import HELP, help_text
from tiered.metrics import Metric as Figure
from tiered.store.metrics import SECONDS_BOUNDS, RequestFigures, StoreMetrics, request_metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Views = Callable[[], Sequence[PartitionView]]
Figures = Callable[[], Iterable[Figure]]

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


def _is_refused(view: PartitionView) -> bool:
    return view.waiting is not None and view.waiting.code == "permission"


_GAUGES: tuple[tuple[str, str, Callable[[PartitionView], float]], ...] = (
    ("end_offset", HELP["end_offset"], lambda v: v.end_offset),
    ("flushed_offset", HELP["flushed_offset"], lambda v: v.flushed_offset),
    ("uploaded_offset", HELP["uploaded_offset"], lambda v: v.uploaded_offset),
    ("upload_lag_bytes", "Bytes on this disk that are not uploaded.", lambda v: v.lag_bytes),
    ("upload_lag_seconds", "Age of the oldest sealed byte that is not uploaded.", lambda v: v.lag_ms / 1000),
    (
        "oldest_unuploaded_seconds",
        "Age of the oldest byte that is not uploaded, including the active segment.",
        lambda v: v.oldest_unuploaded_ms / 1000,
    ),
    ("upload_lag_segments", "Sealed segments that are not committed.", lambda v: v.segments_waiting),
    ("paused", "1 if uploads of the partition are paused.", lambda v: float(v.paused)),
    ("fenced", HELP["fenced"], lambda v: float(v.phase == "fenced")),
    ("refused", "1 if the store refuses the partition's uploads.", lambda v: float(_is_refused(v))),
)


class Metrics:
    """Metrics of one service. ``by_partition`` False: one series per topic, the sum of its partitions or highest time.

    ``views``: returns the partitions' status. Three functions return more metrics. ``writer``: those of the log
    directory, such as background tasks of its writer. ``maintenance``: that of the bucket, if it runs here.
    ``limits``: memory, and requests that the store refused as too many.
    """

    def __init__(
        self,
        store: StoreMetrics,
        views: Views,
        *,
        by_partition: bool = True,
        writer: Figures = list,
        maintenance: Figures = list,
        limits: Figures = list,
        clock: Clock | None = None,
    ) -> None:
        self.registry = _Registry()
        registry = self.registry
        self.commits = Counter("tiered_commit", "Commits, by result.", ["result"], registry=registry)
        self.commit_seconds = Histogram(
            "tiered_commit_seconds",
            "Duration of commits, including the read-back.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.upload_seconds = Histogram(
            "tiered_upload_seconds", "Duration of segment uploads.", buckets=_SECONDS, registry=registry
        )
        self.uploaded_bytes = Counter(
            "tiered_uploaded_bytes", "Bytes of uploaded and verified .log objects.", registry=registry
        )
        self.errors = Counter(
            "tiered_upload_errors", "Failed uploads and commits, by error code.", ["kind"], registry=registry
        )
        self.last_commit = Gauge(
            "tiered_last_successful_upload_timestamp_seconds", "Unix time of the last commit.", registry=registry
        )
        self.disk_free_bytes: int | None = None
        self.disk_used_percent = 0
        build = Gauge("tiered_build_info", "1, with the versions as labels.", ["version", "python"], registry=registry)
        build.labels(__version__, platform.python_version()).set(1)
        registry.register(_Disk(self))
        registry.register(_PartitionMetrics(views, by_partition=by_partition))
        registry.register(_RequestSeconds(store))
        clock = clock or SystemClock()

        def requests() -> list[Figure]:  # without the sums of seconds, which the histogram has
            found = request_metrics(store, clock.monotonic())
            return [each for each in found if each.name != "tiered_store_request_seconds_total"]

        # One collector: the lag of a group comes from the directory or from the bucket, under one name.
        registry.register(_Figures(lambda: chain(requests(), limits(), writer(), maintenance())))

    def render(self) -> bytes:
        """Return the Prometheus text for ``/metrics``."""
        return generate_latest(self.registry)


class _Registry(CollectorRegistry):
    """Registry without ``_created`` series, which the client adds to counters: its switch is for the whole process."""

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class _Disk(Collector):
    """Space of the disk, without any figure before the first scan, because 0 free bytes would raise an alert."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("tiered_disk_free_bytes", HELP["disk_free_bytes"])
        if self._metrics.disk_free_bytes is not None:
            family.add_metric([], self._metrics.disk_free_bytes)
        yield family
        used = GaugeMetricFamily("tiered_disk_used_ratio", "Used part of the log's disk, from 0 to 1.")
        if self._metrics.disk_free_bytes is not None:
            used.add_metric([], self._metrics.disk_used_percent / 100)
        yield used


class _PartitionMetrics(Collector):
    def __init__(self, views: Views, *, by_partition: bool) -> None:
        self._views = views
        self._by_partition = by_partition

    def collect(self) -> Iterator[GaugeMetricFamily]:
        views = self._views()
        labels = ["topic", "partition"] if self._by_partition else ["topic"]
        for name, about, value in _GAUGES:
            family = GaugeMetricFamily(f"tiered_{name}", about, labels=labels)
            for key, number in self._values(views, value, total=not name.endswith("_seconds")):
                family.add_metric(key, number)
            yield family

    def _values(
        self, views: Sequence[PartitionView], value: Callable[[PartitionView], float], *, total: bool
    ) -> Iterable[tuple[list[str], float]]:
        if self._by_partition:
            return [([view.tp.topic, str(view.tp.partition)], value(view)) for view in views]
        sums: dict[str, float] = {}
        for view in views:
            before = sums.get(view.tp.topic, 0.0)
            sums[view.tp.topic] = before + value(view) if total else max(before, value(view))
        return [([topic], number) for topic, number in sums.items()]


class _Figures(Collector):
    """Prometheus collector of the library's own metrics, under their names and help texts."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for figure in self._figures():
            family = families.get(figure.name)
            if family is None:
                kind = CounterMetricFamily if figure.name.endswith("_total") else GaugeMetricFamily
                labels = [name for name, _ in figure.labels]
                family = families[figure.name] = kind(figure.name, help_text(figure.name), labels=labels)
            family.add_metric([_text(value) for _, value in figure.labels], figure.value)
        yield from families.values()


def _text(value: str) -> str:
    """Return a label's value as valid UTF-8. The path of a directory may hold other bytes."""
    return value.encode("utf-8", "backslashreplace").decode()


class _RequestSeconds(Collector):
    """Histogram of the requests to the store."""

    def __init__(self, store: StoreMetrics) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        seconds = HistogramMetricFamily(
            "tiered_store_request_seconds", "Duration of requests to the store.", labels=["op"]
        )
        by_op: dict[str, list[RequestFigures]] = {}
        for figures in self._store.snapshot():
            by_op.setdefault(figures.op, []).append(figures)
        for op, lines in by_op.items():
            counts = accumulate(sum(line.buckets[i] for line in lines) for i in range(len(SECONDS_BOUNDS) + 1))
            bounds = [*map(str, SECONDS_BOUNDS), "+Inf"]
            running = [(bound, float(count)) for bound, count in zip(bounds, counts, strict=True)]
            seconds.add_metric([op], running, sum(line.seconds for line in lines))
        yield seconds
