"""The text of /metrics: takes what `EngineMetrics` says, gives a Prometheus page with the labels and extras of vLLM's."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.simulator.histogram import Histogram
from server.simulator.metrics import EngineMetrics, Series
from server.simulator.settings import SimulatorSettings


class Exposition(Collector):
    """The page of one server."""

    def __init__(self, settings: SimulatorSettings, metrics: EngineMetrics, started_s: float) -> None:
        """`started_s`: seconds since 1970 at which this server began; a later one tells of a restart."""
        self._metrics = metrics
        self._started_s = started_s
        self._labels = {"model_name": settings.served_model_name, "engine": "0"}
        self._cache_config = {
            "block_size": str(settings.block_size),
            "cache_dtype": settings.kv_cache_dtype,
            "enable_prefix_caching": str(settings.enable_prefix_caching),
            "gpu_memory_utilization": str(settings.gpu_memory_utilization),
            "num_gpu_blocks": str(settings.num_gpu_blocks),
            "num_gpu_blocks_override": str(settings.num_gpu_blocks_override),
            "kv_cache_size_tokens": str(settings.num_gpu_blocks * settings.block_size),
            "engine": "0",
        }
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All families, for prometheus-client."""
        started = GaugeMetricFamily(
            "process_start_time_seconds", "Start time of the process since unix epoch in seconds."
        )
        started.add_metric([], self._started_s)
        yield started
        config = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=list(self._cache_config)
        )
        config.add_metric(list(self._cache_config.values()), 1)
        yield config
        family: Metric | None = None
        for series in self._metrics.series():
            if family is not None and family.name == series.name:
                self._add(family, series)
                continue
            if family is not None:
                yield family
            family = self._family(series)
            self._add(family, series)
        if family is not None:
            yield family

    def _family(self, series: Series) -> Metric:
        names = [*self._labels, *series.labels]
        if series.kind == "histogram":
            return HistogramMetricFamily(series.name, series.documentation, labels=names)
        make = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
        return make(series.name, series.documentation, labels=names)

    def _add(self, family: Metric, series: Series) -> None:
        values = [*self._labels.values(), *series.labels.values()]
        if isinstance(series.value, Histogram):
            assert isinstance(family, HistogramMetricFamily)
            family.add_metric(values, series.value.buckets(), series.value.sum)
        else:
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
            family.add_metric(values, series.value)
