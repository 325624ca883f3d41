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

from jaxengine.server.metrics.families import ENGINE_METRICS, HTTP_METRICS, PREFIX, VLLM, Metric, Samples
from jaxengine.server.metrics.http import HttpRecorder
from jaxengine.server.metrics.recorder import Recorder

_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}


class Exposition(Collector):
    """Renders what was recorded. Each server has its own registry, so several can live in one process.

    engine: set once the model is loaded; until then its metrics have no samples.
    model_name: the value of the label of that name, the first of the names that the server answers to.
    """

    def __init__(self, http: HttpRecorder, model_name: str, vllm_names: bool = True) -> None:
        self.http, self.model_name, self.vllm_names = http, model_name, vllm_names
        self.engine: Recorder | None = None
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)      # memory, file descriptors, start time

    def describe(self) -> list[Family]:
        return []      # the registry need not collect once just to learn the names

    def collect(self) -> Iterator[Family]:
        engine = self.engine
        for metric in ENGINE_METRICS:
            yield from self._families(metric, [] if engine is None else metric.read(engine))
        for metric in HTTP_METRICS:
            yield from self._families(metric, metric.read(self.http))

    def _families(self, metric: Metric[Any], samples: Samples) -> Iterator[Family]:
        """The metric under our name and under vLLM's, with the same samples."""
        samples = list(samples)
        yield self._family(PREFIX + metric.name, metric, samples)
        for name in metric.vllm if self.vllm_names else ():
            yield self._family(VLLM + name, metric, samples)

    def _family(self, name: str, metric: Metric[Any], samples: Samples) -> Family:
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
        shown: dict[str, Any] = {"time": time.monotonic(), "model": self.model_name}
        if (recorder := self.engine) is None:
            return shown
        engine, blocks = recorder.engine, recorder.engine.blocks
        return shown | {
            "num_requests_running": engine.scheduler.num_running,
            "num_requests_waiting": engine.scheduler.num_waiting,
            "max_num_seqs": engine.config.scheduler.max_num_seqs,
            "kv_cache_usage": blocks.usage,
            "prompt_tokens": recorder.prompt_tokens,
            "generation_tokens": recorder.generation_tokens,
            "prefix_cache_queries": blocks.num_queried_tokens,
            "prefix_cache_hits": blocks.num_hit_tokens,
            "num_compiling": engine.ledger.num_pending,      # an answer may have to wait for one of them
        }
