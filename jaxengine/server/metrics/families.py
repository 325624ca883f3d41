"""The list of metrics: name, meaning, labels, vLLM's name for it where it has one, and where it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jaxengine.server.metrics.histogram import Histogram
from jaxengine.server.metrics.http import HttpRecorder
from jaxengine.server.metrics.recorder import Recorder

PREFIX = "jaxengine_"
VLLM = "vllm:"

# One sample: the values of the labels, then the number or the histogram.
Samples = Iterable[tuple[tuple[str, ...], Any]]


Source = TypeVar("Source", Recorder, HttpRecorder)


@dataclass(frozen=True)
class Metric(Generic[Source]):
    """`name` without prefix and, for counters, without `_total`. Times are seconds, shares 0 to 1."""

    name: str
    kind: str                       # gauge, counter, histogram
    help: str
    read: Callable[[Source], Samples]
    labels: tuple[str, ...] = ()
    vllm: tuple[str, ...] = ()      # vLLM's names, same form


def _one(value: float | Histogram) -> Samples:
    return [((), value)]


def _by(table: dict[str, Any]) -> Samples:
    return [((key,), value) for key, value in list(table.items())]


def _steps(r: Recorder) -> Samples:
    return [((kind, str(bucket)), h) for (kind, bucket), h in r.step_time.items() if h.count]


def _compiled(r: Recorder) -> list[Any]:
    return [entry for entry in list(r.engine.ledger.entries.values()) if entry.seconds is not None]


def _slo_ratio(r: Recorder) -> Samples:
    return [((name,), s.met / s.judged) for name, s in r.slo.items() if s.judged]


def _targets(r: Recorder) -> Samples:
    targets = {"ttft": r.targets.ttft, "itl": r.targets.itl}
    return [((name,), value) for name, value in targets.items() if value is not None]


def _cache_config(r: Recorder) -> Samples:
    blocks = r.engine.blocks      # each shard's pool has a null block, which nobody gets
    return [((str(blocks.block_size), str(blocks.num_blocks - len(blocks))), 1)]


ENGINE_METRICS: tuple[Metric[Recorder], ...] = (
    # Now.
    Metric("num_requests_running", "gauge", "Sequences that are being computed.",
           lambda r: _one(r.engine.scheduler.num_running), vllm=("num_requests_running",)),
    Metric("num_requests_waiting", "gauge", "Sequences that wait to be scheduled, preempted ones included.",
           lambda r: _one(r.engine.scheduler.num_waiting), vllm=("num_requests_waiting",)),
    Metric("kv_cache_usage_ratio", "gauge", "Share of the KV cache's blocks in use.",
           lambda r: _one(r.engine.blocks.usage), vllm=("kv_cache_usage_perc",)),
    Metric("cache_config_info", "gauge", "Size of the KV cache: tokens a block, and blocks.",
           _cache_config, ("block_size", "num_gpu_blocks"), ("cache_config_info",)),
    # Tokens and the prefix cache.
    Metric("prompt_tokens", "counter", "Prompt tokens of requests whose prompt was computed, cached ones included.",
           lambda r: _one(r.prompt_tokens), vllm=("prompt_tokens",)),
    Metric("generation_tokens", "counter", "Tokens generated.",
           lambda r: _one(r.generation_tokens), vllm=("generation_tokens",)),
    Metric("prefix_cache_queries", "counter", "Prompt tokens looked up in the prefix cache.",
           lambda r: _one(r.engine.blocks.num_queried_tokens), vllm=("prefix_cache_queries",)),
    Metric("prefix_cache_hits", "counter", "Prompt tokens taken from the prefix cache.",
           lambda r: _one(r.engine.blocks.num_hit_tokens), vllm=("prefix_cache_hits",)),
    Metric("prefix_cache_evictions", "counter", "Blocks whose cached contents were given up for new ones.",
           lambda r: _one(r.engine.blocks.num_evictions)),
    Metric("num_preemptions", "counter", "Sequences that gave up their blocks, to be computed again.",
           lambda r: _one(r.engine.scheduler.num_preemptions), vllm=("num_preemptions",)),
    # Requests.
    Metric("request_success", "counter", "Sequences that ended, by reason; abort and error are counted too.",
           lambda r: _by(r.finished), ("finished_reason",), ("request_success",)),
    Metric("time_to_first_token_seconds", "histogram", "From a request's arrival to its first token.",
           lambda r: _one(r.ttft), vllm=("time_to_first_token_seconds",)),
    Metric("inter_token_latency_seconds", "histogram", "Between two tokens of a sequence.",
           lambda r: _one(r.itl), vllm=("inter_token_latency_seconds", "time_per_output_token_seconds")),
    Metric("request_time_per_output_token_seconds", "histogram", "A finished sequence's mean time between tokens.",
           lambda r: _one(r.tpot), vllm=("request_time_per_output_token_seconds",)),
    Metric("e2e_request_latency_seconds", "histogram", "From a request's arrival to its last token.",
           lambda r: _one(r.e2e), vllm=("e2e_request_latency_seconds",)),
    Metric("request_queue_time_seconds", "histogram", "From a request's arrival to its first step.",
           lambda r: _one(r.queue), vllm=("request_queue_time_seconds",)),
    Metric("request_prefill_time_seconds", "histogram", "From a request's first step to its first token.",
           lambda r: _one(r.prefill), vllm=("request_prefill_time_seconds",)),
    Metric("request_decode_time_seconds", "histogram", "From a request's first token to its last.",
           lambda r: _one(r.decode), vllm=("request_decode_time_seconds",)),
    Metric("request_prompt_tokens", "histogram", "Prompt tokens of a finished request.",
           lambda r: _one(r.prompt_length), vllm=("request_prompt_tokens",)),
    Metric("request_generation_tokens", "histogram", "Tokens of a finished sequence.",
           lambda r: _one(r.output_length), vllm=("request_generation_tokens",)),
    # Steps.
    Metric("step_seconds", "histogram", "What a step added to the time of the one before it, by kind and bucket.",
           _steps, ("kind", "bucket")),
    Metric("step_tokens", "histogram", "Tokens computed in one step.", lambda r: _by(r.step_tokens), ("kind",)),
    Metric("padding_tokens", "counter", "Tokens that buckets computed for nobody.",
           lambda r: _by(r.padding), ("kind",)),
    Metric("executables_compiled", "counter", "Executables compiled since the start.",
           lambda r: _one(len(_compiled(r)))),
    Metric("compile_seconds", "counter", "Time spent on compiling them.",
           lambda r: _one(sum(entry.seconds for entry in _compiled(r)))),
    Metric("compilations_after_warmup", "counter", "Executables that had to be compiled although warm-up was over.",
           lambda r: _one(r.engine.ledger.compiled_after_warmup)),
    # Service levels: requests for ttft, gaps between tokens for itl, and requests that met both for request.
    Metric("slo_target_seconds", "gauge", "The latency that was set as a target.", _targets, ("slo",)),
    Metric("slo_judged", "counter", "How many were compared with their target.",
           lambda r: [((name,), s.judged) for name, s in r.slo.items()], ("slo",)),
    Metric("slo_met", "counter", "How many of those met it.",
           lambda r: [((name,), s.met) for name, s in r.slo.items()], ("slo",)),
    Metric("slo_met_ratio", "gauge", "Their share since the start.", _slo_ratio, ("slo",)),
)

HTTP_METRICS: tuple[Metric[HttpRecorder], ...] = (
    Metric("requests_refused", "counter", "Requests that were answered with an error, by reason.",
           lambda r: _by(r.refused), ("reason",)),
    Metric("http_responses", "counter", "HTTP responses by route and status; 499: the client left first.",
           lambda r: [((path, str(status)), n) for (path, status), n in list(r.responses.items())],
           ("endpoint", "status")),
)
