"""What the service counts, for Prometheus; the only importer of its client.

Engine, guard and connections count here, /metrics shows it. It must not know what is counted: docs/http.md says that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second line for every counter, which nobody reads

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters, by the names that they are shown under."""

    def __init__(self) -> None:
        """All at zero."""
        own = self._registry = CollectorRegistry()
        ProcessCollector(registry=own)
        times: dict[str, Any] = {"buckets": SECONDS, "registry": own}
        self.requests = Counter("bpr_requests", "Requests by route and status.", ("route", "status"), registry=own)
        self.seconds = Histogram("bpr_request_seconds", "Accepted requests, whole.", ("route",), **times)
        self.stages = Histogram("bpr_stage_seconds", "Stages of a batch.", ("stage",), **times)
        self.batches = Histogram("bpr_batch_questions", "Questions that shared a search.", buckets=SIZES, registry=own)
        self.in_flight = Gauge("bpr_in_flight", "Requests that are being worked on.", registry=own)
        self.rows = Gauge("bpr_index_rows", "Passages that are searched.", registry=own)
        self.bytes = Gauge("bpr_index_bytes", "Bytes of the bundle's files.", registry=own)
        self.generation = Gauge("bpr_index_generation", "Number of the bundle's generation.", registry=own)
        self.reloads = Counter("bpr_reloads", "Newer generations that were seen.", ("result",), registry=own)
        self.ready = Gauge("bpr_ready", "1 while requests are accepted.", registry=own)

    def stage_times(self, times: Mapping[str, float]) -> None:
        """Milliseconds that the stages of one batch took."""
        for stage, value in times.items():
            if value:
                self.stages.labels(stage).observe(value / 1000)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return bytes(generate_latest(self._registry))
