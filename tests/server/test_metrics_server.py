"""The metrics and the log of a real server: exact differences around known requests."""

import json
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrape import Scrape, change, names, parse, value
from wire import Wire, http_post

from jaxengine.server.metrics.families import ENGINE_METRICS, HTTP_METRICS, PREFIX, VLLM

ROOT = Path(__file__).parents[2]


def scrape(wire: Wire) -> Scrape:
    answer = wire.get("/metrics")
    assert answer.status == 200
    return parse(answer.body)


@pytest.fixture
def one(serve: Callable[..., Any], until_idle: Callable[[], bool]) -> Any:
    """A server of its own, whose counters nobody else moves."""
    assert until_idle()
    with serve(slo_ttft_ms=600_000, slo_itl_ms=600_000) as wire:
        yield wire


PROMPT = list(range(40, 80))      # two full blocks and a half
BODY = {"prompt": PROMPT, "temperature": 0, "max_tokens": 5, "ignore_eos": True, "cache_salt": "metrics"}


def test_known_requests_move_the_counters_by_known_amounts(one: Wire) -> None:
    before = scrape(one)
    first = one.post("/v1/completions", BODY).json
    again = one.post("/v1/completions", BODY | {"stream": True, "n": 2})
    assert first["usage"]["completion_tokens"] == 5
    assert again.status == 200
    assert one.post("/v1/completions", BODY | {"prompt": []}).status == 400
    assert one.post("/v1/completions", BODY | {"model": "none"}).status == 404
    after = scrape(one)
    for prefix in (PREFIX, VLLM):
        grown = {name: change(before, after, prefix + name) for name in (
            "prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
            "time_to_first_token_seconds_count", "inter_token_latency_seconds_count",
            "e2e_request_latency_seconds_count", "num_preemptions_total",
        )}
        assert grown == {
            "prompt_tokens_total": 80, "generation_tokens_total": 15, "prefix_cache_queries_total": 80,
            "prefix_cache_hits_total": 32, "time_to_first_token_seconds_count": 2,
            "inter_token_latency_seconds_count": 12, "e2e_request_latency_seconds_count": 2,
            "num_preemptions_total": 0,
        }
        assert change(before, after, prefix + "request_success_total", finished_reason="length") == 3
    refused = {reason: change(before, after, "jaxengine_requests_refused_total", reason=reason)
               for reason in ("invalid", "not_found", "other")}
    assert refused == {"invalid": 1, "not_found": 1, "other": 0}
    statuses = {status: change(before, after, "jaxengine_http_responses_total", endpoint="/v1/completions",
                               status=status) for status in ("200", "400", "404")}
    assert statuses == {"200": 2, "400": 1, "404": 1}
    met = {slo: change(before, after, "jaxengine_slo_met_total", slo=slo) for slo in ("ttft", "itl", "request")}
    assert met == {"ttft": 2, "itl": 12, "request": 2}
    assert value(after, "jaxengine_slo_met_ratio", slo="request") == 1
    assert value(after, "vllm:num_requests_running") == value(after, "vllm:kv_cache_usage_perc") == 0
    assert value(after, "jaxengine_compilations_after_warmup_total") == 0
    # Arrival is when the request's head was read, so first tokens cannot come faster than steps take.
    ttft = change(before, after, "vllm:time_to_first_token_seconds_sum")
    assert 0 < ttft <= change(before, after, "vllm:e2e_request_latency_seconds_sum")


def test_a_client_that_leaves_is_an_abort(one: Wire, until_idle: Callable[[], bool]) -> None:
    before = scrape(one)
    with one.socket() as client:
        client.sendall(http_post("/v1/completions", BODY | {"max_tokens": 200, "stream": True}))
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert until_idle()
    deadline = time.monotonic() + 5      # the exchange ends a moment after the engine's part of it
    left: dict[str, str] = {"endpoint": "/v1/completions", "status": "499"}
    while ("jaxengine_http_responses_total", frozenset(left.items())) not in (after := scrape(one)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert change(before, after, "vllm:request_success_total", finished_reason="abort") == 1
    assert change(before, after, "vllm:e2e_request_latency_seconds_count") == 0


def test_labels_do_not_grow_with_what_clients_send(one: Wire) -> None:
    for i in range(3):
        one.get(f"/nothing/{i}")
        one.get(f"/v1/models/tiny-{i}")
        one.post("/v1/completions", BODY | {"model": f"m{i}\n", "user": f"u{i}"})
    found = scrape(one)
    endpoints = {dict(labels)["endpoint"] for name, labels in found if name == "jaxengine_http_responses_total"}
    assert endpoints == {"other", "/v1/models/{id}", "/v1/completions"}
    assert {dict(labels).get("model_name") for _, labels in found} == {None}
    assert one.get("/metrics").body.count(b'model_name="tiny"') > 100
    assert b"tiny-alias" not in one.get("/metrics").body


def test_stats(one: Wire) -> None:
    stats = one.get("/stats").json
    assert stats["status"] == "ready"
    assert stats["model"] == "tiny"
    assert (stats["num_requests_running"], stats["num_requests_waiting"], stats["max_num_seqs"]) == (0, 0, 8)
    assert (stats["kv_cache_usage"], stats["num_compiling"]) == (0, 0)
    one.post("/v1/completions", BODY)
    later = one.get("/stats").json
    assert later["generation_tokens"] - stats["generation_tokens"] == 5
    assert later["time"] > stats["time"]


def test_metrics_and_stats_are_guarded_and_can_be_off(serve: Callable[..., Any]) -> None:
    with serve(api_key=("sk-1",), metrics=False) as wire:
        for path in ("/metrics", "/stats"):
            assert wire.get(path).status == 401
        answer = wire.get("/metrics", Authorization="Bearer sk-1")
        assert (answer.status, answer.error["message"]) == (404, "this server was started with --no-metrics")
        page = wire.get("/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    with serve(api_key=("sk-1",), open_metrics=True, vllm_metric_names=False) as wire:
        answer = wire.get("/metrics")
        assert answer.status == 200
        assert b"vllm:" not in answer.body
        assert wire.get("/stats").status == 401


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.items.append(record.__dict__["items"])


@pytest.fixture
def logged() -> Any:
    logger, handler = logging.getLogger("jaxengine.access"), Lines()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.items
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_one_line_a_request(one: Wire, logged: list[dict[str, Any]]) -> None:
    one.get("/health")      # not a line: machines ask for it all the time
    body = BODY | {"user": "u\n1", "cache_salt": "log", "stop": None}
    one.post("/v1/completions", body, X_Request_Id="mine")
    one.post("/v1/completions", body | {"stream": True, "prompt": [PROMPT, PROMPT]})
    one.post("/v1/completions", body | {"max_tokens": -1})
    deadline = time.monotonic() + 5
    while len(logged) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    first, second, third = logged
    times = {name: first.pop(name) for name in ("queue", "ttft", "e2e")}
    assert 0 < times["queue"] < times["ttft"] < times["e2e"]
    assert first == {
        "request_id": "mine", "method": "POST", "endpoint": "/v1/completions", "status": 200, "model": "tiny",
        "user": "u\n1", "prompt_tokens": 40, "cached_tokens": 0, "output_tokens": 5, "finish_reasons": ["length"],
    }
    assert (second["stream"], second["prompt_tokens"], second["output_tokens"]) == (True, 80, 10)
    assert second["cached_tokens"] in (32, 64)      # the second prompt may start with the first or after it
    assert second["finish_reasons"] == ["length", "length"]
    assert (third["status"], "prompt_tokens" in third) == (400, False)


def test_the_dashboard_names_only_metrics_that_exist(one: Wire) -> None:
    found = names(one.get("/metrics").body)
    folder = ROOT / "configs" / "grafana"
    dashboards = sorted(folder.glob("*.json"))
    assert dashboards
    for path in dashboards:
        dashboard = json.loads(path.read_text())
        queries = list(expressions(dashboard))
        assert len(queries) > 10
        used = set(re.findall(r"\b(?:jaxengine_|vllm:|process_)\w+", " ".join(queries)))
        assert used
        assert used <= found, used - found
        assert all('model_name=~"$model"' in query for query in queries if "jaxengine_" in query)


def expressions(node: Any) -> Any:
    """Every query of a dashboard."""
    if isinstance(node, dict):
        if isinstance(node.get("expr"), str):
            yield node["expr"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from expressions(child)


def test_the_readme_lists_every_metric() -> None:
    text = (ROOT / "README.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `jaxengine_") or line.startswith("| `_")]
    listed = {word for row in rows for word in row.split("|")[1].replace("`", " ").replace(",", " ").split()}
    expected = {PREFIX + m.name + ("_total" if m.kind == "counter" else "") for m in (*ENGINE_METRICS, *HTTP_METRICS)}
    assert listed == expected
