"""A server's metrics in Prometheus' text, and the same few figures that the chat page shows as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from jaxengine.server.metrics.families import METRICS, PREFIX, VLLM, Metric
from jaxengine.server.metrics.recorder import Recorder

_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}


class Exposition(Collector):
    """Renders a Recorder. Each server has its own registry, so several can live in one process.

    model_name: the value of the label of that name, the first of the names that the server answers to.
    """

    def __init__(self, recorder: Recorder, model_name: str, vllm_names: bool = True) -> None:
        self.recorder, self.model_name, self.vllm_names = recorder, model_name, vllm_names
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)      # memory, file descriptors, start time

    def describe(self) -> list[Family]:
        return []      # the registry need not collect once just to learn the names

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            samples = list(metric.read(self.recorder))      # once, so that aliases agree
            yield self._family(PREFIX + metric.name, metric, samples)
            for name in metric.vllm if self.vllm_names else ():
                yield self._family(VLLM + name, metric, samples)

    def _family(self, name: str, metric: Metric, samples: list[tuple[tuple[str, ...], Any]]) -> Family:
        family = _FAMILIES[metric.kind](name, metric.help, labels=("model_name", *metric.labels))
        for labels, value in samples:
            labels = (self.model_name, *labels)
            if metric.kind == "histogram":
                buckets = [(floatToGoString(bound), count) for bound, count in value.cumulative()]
                family.add_metric(labels, buckets, value.total)
            else:
                family.add_metric(labels, value)
        return family

    def render(self, accept: str | None = None) -> tuple[bytes, str]:
        """(body, content type) of a scrape whose Accept header is `accept`."""
        encode, content_type = choose_encoder(accept or "")
        return encode(self.registry), content_type

    def snapshot(self) -> dict[str, Any]:
        """Queue, cache and token counts at `time` (seconds); two of them give the throughput in between."""
        r, engine = self.recorder, self.recorder.engine
        return {
            "time": time.monotonic(),
            "model": self.model_name,
            "num_requests_running": engine.scheduler.num_running,
            "num_requests_waiting": engine.scheduler.num_waiting,
            "max_num_seqs": engine.config.scheduler.max_num_seqs,
            "kv_cache_usage": engine.blocks.usage,
            "prompt_tokens": r.prompt_tokens,
            "generation_tokens": r.generation_tokens,
            "prefix_cache_queries": engine.blocks.num_queried_tokens,
            "prefix_cache_hits": engine.blocks.num_hit_tokens,
        }
