"""Every figure of a scrape against a hand count: an engine without a device, and a clock that the test moves."""

from types import SimpleNamespace

import pytest
from scrape import Scrape, change, names, parse, value

from jaxengine import SamplingParams
from jaxengine.bench.stand_in import WORDS, StandInRunner
from jaxengine.config import EngineConfig
from jaxengine.engine import collect, launch
from jaxengine.engine import engine as engine_module
from jaxengine.engine.engine import Engine
from jaxengine.engine.results import HostResult
from jaxengine.scheduler import scheduler as scheduler_module
from jaxengine.server.metrics import Exposition, HttpRecorder, Recorder, SloTargets
from jaxengine.server.metrics.families import ENGINE_METRICS, HTTP_METRICS
from jaxengine.server.metrics.histogram import Histogram, decades, powers_of_two, with_bound
from jaxengine.server.metrics.http import REFUSALS, refusal

WINDOW = 64
THREE = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


class Clock:
    """Stands for the time module: both its clocks show `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (engine_module, launch, collect):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(scheduler_module, "time", clock)
    return clock


class Served:
    """A stand-in engine that is watched; arrival times are the clock's."""

    def __init__(
        self, clock: Clock | None = None, targets: SloTargets | None = None, num_blocks: int = 17
    ) -> None:
        config = EngineConfig.from_options(max_num_seqs=4, max_num_batched_tokens=32)
        runner = StandInRunner(config, 8000, num_blocks, WINDOW)
        self.engine = Engine(runner, config, WINDOW)      # type: ignore[arg-type]
        self.recorder = self.engine.observer = Recorder(self.engine, targets)
        self.http = HttpRecorder()
        self.exposition = self.exposed()
        self.clock = clock

    def exposed(self, model_name: str = "tiny", vllm_names: bool = True) -> Exposition:
        exposition = Exposition(self.http, model_name, vllm_names)
        exposition.engine = self.recorder
        return exposition

    def add(self, prompt: list[int], params: SamplingParams = THREE) -> str:
        request_id = self.engine.add_request(prompt, params)
        if self.clock is not None:
            self.engine.requests[request_id].request.arrival_time = self.clock.now
            self.engine.requests[request_id].metrics.arrival_time = self.clock.now
        return request_id

    def step(self, seconds: float = 0.0) -> None:
        if self.clock is not None:
            self.clock.now += seconds
        self.engine.step()

    def drain(self) -> None:
        while self.engine.has_unfinished:
            self.engine.step()

    def scrape(self) -> Scrape:
        return parse(self.exposition.render()[0])


def test_tokens_reasons_and_prefix_hits_are_exact() -> None:
    served = Served()
    before = served.scrape()
    served.add([1] * 20)
    served.drain()
    served.add([1] * 20, THREE.replace(n=2))       # its first block of 16 tokens is in the cache
    served.add([7, 8], THREE.replace(max_tokens=1))
    aborted = served.add([9, 9], THREE.replace(max_tokens=40))
    served.step()
    served.engine.abort(aborted)
    served.drain()
    after = served.scrape()
    for prefix in ("jaxengine_", "vllm:"):
        grown = {m: change(before, after, prefix + m) for m in (
            "prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
            "num_preemptions_total", "e2e_request_latency_seconds_count", "time_to_first_token_seconds_count",
            "inter_token_latency_seconds_count", "request_queue_time_seconds_count",
        )}
        assert grown == {
            "prompt_tokens_total": 20 + 20 + 2,
            "generation_tokens_total": 3 + 2 * 3 + 1,
            "prefix_cache_queries_total": 20 + 20 + 2 + 2,
            "prefix_cache_hits_total": 16,
            "num_preemptions_total": 0,
            "e2e_request_latency_seconds_count": 3,         # the aborted one has no latency
            "time_to_first_token_seconds_count": 3,
            "inter_token_latency_seconds_count": 2 + 2 * 2,
            "request_queue_time_seconds_count": 3,
        }
        ends = {r: change(before, after, prefix + "request_success_total", finished_reason=r)
                for r in ("stop", "length", "abort", "error")}
        assert ends == {"stop": 0, "length": 4, "abort": 1, "error": 0}
    assert value(after, "vllm:kv_cache_usage_perc") == value(after, "jaxengine_kv_cache_usage_ratio") == 0


def test_gauges_are_those_of_the_moment() -> None:
    served = Served()
    for i in range(6):
        served.add([i + 1, 2, 3])
    served.step()
    scrape = served.scrape()
    assert value(scrape, "vllm:num_requests_running") == 4
    assert value(scrape, "vllm:num_requests_waiting") == 2
    assert value(scrape, "vllm:kv_cache_usage_perc") == 4 / 16      # a block each; the pool holds 4 times 64 tokens
    assert value(scrape, "vllm:cache_config_info", block_size="16", num_gpu_blocks="16") == 1
    snapshot = served.exposition.snapshot()
    assert (snapshot["num_requests_running"], snapshot["num_requests_waiting"]) == (4, 2)
    assert (snapshot["kv_cache_usage"], snapshot["max_num_seqs"], snapshot["model"]) == (0.25, 4, "tiny")


def test_latencies(clock: Clock) -> None:
    served = Served(clock)
    served.add([1, 2, 3])
    served.step(0.3)       # launches the prompt: 0.3 s of queue
    served.step(0.5)       # reads its token: 0.8 s to the first
    served.step(0.04)
    served.step(0.06)      # the third and last token
    served.drain()
    sums = {m: (value(s, f"jaxengine_{m}_count"), pytest.approx(value(s, f"jaxengine_{m}_sum"))) for m in (
        "request_queue_time_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds",
        "request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_prefill_time_seconds",
        "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens",
    ) for s in [served.scrape()]}
    assert sums == {
        "request_queue_time_seconds": (1, 0.3), "time_to_first_token_seconds": (1, 0.8),
        "inter_token_latency_seconds": (2, 0.1), "request_time_per_output_token_seconds": (1, 0.05),
        "e2e_request_latency_seconds": (1, 0.9), "request_prefill_time_seconds": (1, 0.5),
        "request_decode_time_seconds": (1, 0.1), "request_prompt_tokens": (1, 3), "request_generation_tokens": (1, 3),
    }
    scrape = served.scrape()
    up_to = {le: value(scrape, "jaxengine_inter_token_latency_seconds_bucket", le=le)
             for le in ("0.02", "0.05", "0.1", "+Inf")}
    assert up_to == {"0.02": 0, "0.05": 1, "0.1": 2, "+Inf": 2}


def test_steps_by_kind_and_bucket(clock: Clock) -> None:
    served = Served(clock)
    buckets = served.engine.runner.buckets
    for i in range(3):
        served.add([i + 1] * 5)
    served.step()
    served.step(0.5)       # reads the mixed step of 15 tokens
    served.step(0.04)      # reads a decode step of 3 sequences
    served.drain()
    scrape = served.scrape()
    mixed = str(min(b for b in buckets.mixed if b >= 15))
    decode = str(min(b for b in buckets.decode if b >= 3))
    assert value(scrape, "jaxengine_step_seconds_sum", kind="mixed", bucket=mixed) == pytest.approx(0.5)
    assert value(scrape, "jaxengine_step_seconds_sum", kind="decode", bucket=decode) == pytest.approx(0.04)
    # The third token ends all three, but the host learns that one step late.
    steps = value(scrape, "jaxengine_step_seconds_count", kind="decode", bucket=decode)
    assert value(scrape, "jaxengine_step_tokens_sum", kind="mixed") == 15
    assert value(scrape, "jaxengine_step_tokens_sum", kind="decode") == 3 * steps
    assert value(scrape, "jaxengine_padding_tokens_total", kind="mixed") == int(mixed) - 15
    assert value(scrape, "jaxengine_padding_tokens_total", kind="decode") == steps * (int(decode) - 3)
    labels = {dict(key)["bucket"] for name, key in scrape if name == "jaxengine_step_seconds_count"}
    assert labels == {mixed, decode}


def test_a_step_does_not_count_the_time_of_the_one_before_it(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is planned while its predecessor still runs; here every read waits for half a second."""
    read = HostResult.read

    def slow(*args: object) -> HostResult:
        clock.now += 0.5
        return read(*args)      # type: ignore[arg-type]

    monkeypatch.setattr(collect.HostResult, "read", slow)
    served = Served(clock)
    served.add([1, 2], THREE.replace(max_tokens=5))
    served.drain()
    scrape = served.scrape()
    steps = [(key, count) for (name, key), count in scrape.items() if name == "jaxengine_step_seconds_count"]
    assert sum(count for _, count in steps) == 5
    for key, count in steps:
        assert scrape["jaxengine_step_seconds_sum", key] == pytest.approx(0.5 * count)


def test_what_is_sampled_beyond_the_end_does_not_count() -> None:
    served = Served()
    served.add([1, 2], SamplingParams(temperature=0, max_tokens=9, stop_token_ids=list(range(*WORDS))))
    served.drain()
    scrape = served.scrape()
    assert value(scrape, "vllm:request_success_total", finished_reason="stop") == 1
    assert value(scrape, "vllm:generation_tokens_total") == 1
    assert value(scrape, "vllm:request_generation_tokens_sum") == 1


def test_shares_of_the_targets(clock: Clock) -> None:
    served = Served(clock, SloTargets(ttft_ms=1000, itl_ms=50))
    served.add([1, 2])
    served.step()
    served.step(1.0)       # at the target: met
    served.add([3, 4])
    served.step(0.05)      # at the target: met
    served.step(2.0)       # both late, by a gap and by a first token
    served.step(0.01)
    served.step(0.01)
    served.drain()
    scrape = served.scrape()
    shares = {slo: tuple(value(scrape, f"jaxengine_slo_{m}_total", slo=slo) for m in ("met", "judged"))
              for slo in ("ttft", "itl", "request")}
    assert shares == {"ttft": (1, 2), "itl": (3, 4), "request": (0, 2)}
    assert value(scrape, "jaxengine_slo_met_ratio", slo="ttft") == 0.5
    assert value(scrape, "jaxengine_slo_target_seconds", slo="itl") == 0.05
    assert value(scrape, "jaxengine_inter_token_latency_seconds_bucket", le="0.05") == 3


def test_without_targets_nothing_is_judged() -> None:
    served = Served()
    served.add([1, 2])
    served.drain()
    scrape = served.scrape()
    assert value(scrape, "jaxengine_slo_judged_total", slo="ttft") == 0
    assert not any(name in ("jaxengine_slo_met_ratio", "jaxengine_slo_target_seconds") for name, _ in scrape)


@pytest.mark.parametrize("bad", [{"ttft_ms": 0}, {"itl_ms": -1.0}, {"itl_ms": float("nan")}])
def test_bad_targets(bad: dict[str, float]) -> None:
    name = next(iter(bad))
    with pytest.raises(ValueError, match=f"slo_{name}"):
        SloTargets(**bad)


def test_preemptions_are_counted_and_their_gap_seen() -> None:
    served = Served(num_blocks=6)      # five, and the null block
    for i in range(2):
        served.add([i + 1] * 31, THREE.replace(max_tokens=20))
    served.drain()
    scrape = served.scrape()
    assert value(scrape, "vllm:num_preemptions_total") == served.engine.scheduler.num_preemptions > 0
    assert value(scrape, "vllm:generation_tokens_total") == 40
    assert value(scrape, "vllm:inter_token_latency_seconds_count") == 38
    assert value(scrape, "vllm:prefix_cache_queries_total") == 62         # readmission is not a query


def test_a_failed_row_is_an_error_and_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    served.add([1, 2])
    served.step()
    flight = served.engine._flight
    assert flight is not None
    flight.result.finite[0] = False
    served.drain()
    scrape = served.scrape()
    assert value(scrape, "vllm:request_success_total", finished_reason="error") == 1
    assert value(scrape, "vllm:generation_tokens_total") == 0
    assert value(scrape, "vllm:e2e_request_latency_seconds_count") == 0


def test_a_prompt_alone_counts_its_tokens() -> None:
    served = Served()
    served.add([1] * 40, THREE.replace(max_tokens=0))      # more than one chunk
    served.drain()
    scrape = served.scrape()
    assert value(scrape, "vllm:prompt_tokens_total") == 40
    assert value(scrape, "vllm:generation_tokens_total") == 0
    assert value(scrape, "vllm:request_success_total", finished_reason="length") == 1


def test_refusals_have_known_reasons() -> None:
    served = Served()
    for status, code in ((400, "context_length_exceeded"), (400, None), (429, "queue_full"), (418, "x\n{}")):
        served.http.turned_away(status, code)
    scrape = served.scrape()
    counts = {r: value(scrape, "jaxengine_requests_refused_total", reason=r) for r in REFUSALS}
    assert counts == dict.fromkeys(REFUSALS, 0) | {"too_long": 1, "invalid": 1, "queue_full": 1, "other": 1}
    assert refusal(503, None) == "unavailable"


def test_compilations_are_the_ledgers() -> None:
    served = Served()
    ledger = served.engine.ledger
    ledger.compiled_after_warmup = 3
    next(iter(ledger.entries.values())).seconds = 1.5
    scrape = served.scrape()
    assert value(scrape, "jaxengine_compilations_after_warmup_total") == 3
    assert value(scrape, "jaxengine_executables_compiled_total") == 1
    assert value(scrape, "jaxengine_compile_seconds_total") == 1.5


def test_before_the_model_is_loaded() -> None:
    exposition = Exposition(HttpRecorder(), "tiny")
    assert exposition.snapshot().keys() == {"time", "model"}
    before = exposition.render()[0]
    assert value(parse(before), "jaxengine_requests_refused_total", reason="unavailable") == 0
    assert names(before) == names(Served().exposition.render()[0])
    assert not any(name.startswith("vllm:") for name, _ in parse(before))


def test_two_servers_in_one_process_count_for_themselves() -> None:
    one, two = Served(), Served()
    one.add([1, 2])
    one.drain()
    assert value(one.scrape(), "vllm:generation_tokens_total") == 3
    assert value(two.scrape(), "vllm:generation_tokens_total") == 0


def test_vllms_names_can_be_left_out() -> None:
    served = Served()
    plain = served.exposed(vllm_names=False)
    assert not any("vllm" in name for name in names(plain.render()[0]))
    both = names(served.exposition.render()[0])
    assert both > names(plain.render()[0])
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
                 "generation_tokens_total", "request_success_total", "time_to_first_token_seconds_bucket",
                 "inter_token_latency_seconds_bucket", "time_per_output_token_seconds_bucket",
                 "e2e_request_latency_seconds_bucket", "request_queue_time_seconds_bucket",
                 "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total"):
        assert "vllm:" + name in both


def test_every_sample_names_the_model_and_openmetrics_is_offered() -> None:
    served = Served()
    body, kind = served.exposition.render()
    assert kind.startswith("text/plain; version=0.0.4")
    ours = [line for line in body.decode().splitlines() if line.startswith(("jaxengine_", "vllm:"))]
    assert len(ours) > 300
    assert all('model_name="tiny"' in line for line in ours)
    body, kind = served.exposition.render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_odd_model_names_stay_one_label() -> None:
    served = Served()
    name = 'a"b\\c\nd{}'
    body = served.exposed(name).render()[0].decode()
    assert all(line.startswith(("#", "jaxengine_", "vllm:", "process_")) for line in body.splitlines())
    assert 'model_name="a\\"b\\\\c\\nd{}"' in body


def test_names_are_used_once() -> None:
    ours = [m.name for m in (*ENGINE_METRICS, *HTTP_METRICS)]
    theirs = [name for m in (*ENGINE_METRICS, *HTTP_METRICS) for name in m.vllm]
    assert len(set(ours)) == len(ours)
    assert len(set(theirs)) == len(theirs)


def test_histogram() -> None:
    histogram = Histogram((1, 2, 5))
    histogram.observe(1)
    histogram.observe(1.5, 3)
    histogram.observe(9)
    assert histogram.cumulative() == [(1, 1), (2, 4), (5, 4), (float("inf"), 5)]
    assert (histogram.count, histogram.total) == (5, 14.5)
    assert decades(0.001, 0.02) == (0.001, 0.002, 0.005, 0.01, 0.02)
    assert powers_of_two(5) == (1, 2, 4, 8)
    assert powers_of_two(8) == (1, 2, 4, 8)
    assert with_bound((1, 2), 1.5) == (1, 1.5, 2)


def test_a_scrape_needs_nothing_from_a_step_under_way() -> None:
    """Reading while the engine's thread is inside a step: the numbers are those of the last step read."""
    served = Served()
    served.add([1, 2])
    inside = SimpleNamespace(scrape=None)
    forward = served.engine.runner.forward

    def busy(*args: object) -> object:
        inside.scrape = served.scrape()
        return forward(*args)      # type: ignore[arg-type]

    served.engine.runner.forward = busy      # type: ignore[method-assign]
    served.drain()
    assert value(inside.scrape, "vllm:num_requests_running") == 1
    assert value(inside.scrape, "vllm:generation_tokens_total") < 3
    assert value(served.scrape(), "vllm:generation_tokens_total") == 3


def test_steps_of_several_shards_have_a_place() -> None:
    served = Served()
    served.engine.runner.num_shards = 2
    buckets = served.engine.runner.buckets
    expected = {("decode", 2 * b) for b in buckets.decode} | {("mixed", 2 * b) for b in buckets.mixed}
    assert set(Recorder(served.engine).step_time) == expected
