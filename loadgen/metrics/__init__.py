"""Prometheus: what a worker counts while it runs, what the controller shows of it, and the series of finished levels."""

from loadgen.metrics.collector import LiveMetrics
from loadgen.metrics.endpoint import MetricsServer, serve_metrics
from loadgen.metrics.level_series import LevelSeries
from loadgen.metrics.live import LiveHistograms, LiveLatencies

__all__ = [
    "LevelSeries",
    "LiveHistograms",
    "LiveLatencies",
    "LiveMetrics",
    "MetricsServer",
    "serve_metrics",
]
