"""Prometheus: what a worker counts while it runs, what the controller shows of it, and the series of finished levels.

Nothing is imported here: a worker needs `live` alone, and no prometheus_client.
"""
