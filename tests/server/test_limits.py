"""Each limit at its value and one beyond, on servers with small ones."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tiny_model import WINDOW
from wire import Wire, http_post, read_all

from jaxengine.server.admission import admits
from jaxengine.server.model_service import ModelService
from jaxengine.server.settings import ServerSettings

pytestmark = pytest.mark.usefixtures("unharmed")
C, H = "/v1/completions", "/v1/chat/completions"

# Setting, its value, and the fields of a completion that use exactly `size` of it.
FIELDS: list[tuple[str, int, Callable[[int], dict[str, Any]]]] = [
    ("max_prompts", 3, lambda size: {"prompt": ["a"] * size}),
    ("max_sequences", 4, lambda size: {"prompt": ["a"] * size, "n": 1}),
    ("max_n", 3, lambda size: {"n": size}),
    ("max_logprobs", 2, lambda size: {"logprobs": size}),
    ("max_logprobs", 2, lambda size: {"prompt_logprobs": size}),
    ("max_prompt_logprob_entries", 8, lambda size: {"prompt": [1] * size, "prompt_logprobs": 0}),
    ("max_output_tokens", 5, lambda size: {"max_tokens": size}),
    ("max_stop_strings", 32, lambda size: {"stop": ["xyz"] * size}),
    ("max_stop_bytes", 10, lambda size: {"stop": "x" * size}),
    ("max_stop_token_ids", 3, lambda size: {"stop_token_ids": [7] * size}),
    ("max_logit_bias", 3, lambda size: {"logit_bias": {str(i): 1 for i in range(size)}}),
    ("max_bad_words", 2, lambda size: {"bad_words": ["xyz"] * size}),
    ("max_user_chars", 5, lambda size: {"user": "x" * size}),
    ("max_cache_salt_chars", 5, lambda size: {"cache_salt": "x" * size}),
]


@pytest.mark.parametrize(("name", "limit", "fields"), FIELDS, ids=[f"{f[0]}-{i}" for i, f in enumerate(FIELDS)])
def test_fields(serve: Any, name: str, limit: int, fields: Callable[[int], dict[str, Any]]) -> None:
    with serve(**{name: limit}) as wire:
        base = {"prompt": "a", "max_tokens": 2, "temperature": 0}
        assert wire.post(C, base | fields(limit)).status == 200
        refused = wire.post(C, base | fields(limit + 1))
        assert refused.status == 400
        assert str(limit) in refused.error["message"]


def test_messages(serve: Any) -> None:
    with serve(max_messages=2) as wire:
        messages = [{"role": "user", "content": "a"}] * 3
        assert wire.post(H, {"messages": messages[:2], "max_tokens": 1}).status == 200
        assert wire.post(H, {"messages": messages, "max_tokens": 1}).error["param"] == "messages"


def test_body_bytes(serve: Any) -> None:
    with serve(max_body_bytes=1000) as wire:
        body = json.dumps({"prompt": "a", "max_tokens": 1, "x": ""}).encode()
        fits = body.replace(b'""', b'"' + b"y" * (1000 - len(body)) + b'"')
        assert len(fits) == 1000
        assert wire.post(C, fits).status == 200
        assert wire.post(C, fits + b" ").status == 413
        # Without a length: as soon as the running total passes the limit, in pieces of one byte.
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in fits)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" \
               b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        assert wire.raw(head + chunks + b"0\r\n\r\n").startswith(b"HTTP/1.1 200")
        assert wire.raw(head + chunks + b"1\r\nx\r\n").startswith(b"HTTP/1.1 413")
        # A huge announced length is refused before any of it comes.
        announced = b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 1000000000\r\n"
        assert wire.raw(announced + b"\r\n").startswith(b"HTTP/1.1 413")


def test_header_bytes(serve: Any) -> None:
    with serve(max_header_bytes=500) as wire:
        def request(size: int) -> bytes:
            start = b"GET /health HTTP/1.1\r\nconnection: close\r\nx: "
            return start + b"y" * (size - len(start) - 4) + b"\r\n\r\n"

        assert wire.raw(request(500)).startswith(b"HTTP/1.1 200")
        assert wire.raw(request(501)).startswith(b"HTTP/1.1 431")
        assert wire.raw(b"GET /" + b"x" * 10_000).startswith(b"HTTP/1.1 431")


def test_header_and_body_time(serve: Any) -> None:
    with serve(header_timeout=0.2, body_timeout=0.2) as wire:
        assert wire.raw(b"GET /health HTTP/1.1\r\nx: ").startswith(b"HTTP/1.1 408")
        assert wire.raw(b"") == b""
        half = http_post(C, {"prompt": "a" * 100})[:-50]
        assert wire.raw(half).startswith(b"HTTP/1.1 408")
        assert wire.get("/health").status == 200


def test_a_steady_body_may_take_longer(serve: Any) -> None:
    with serve(body_timeout=0.2, min_body_rate=1) as wire, wire.socket() as s:
        request = http_post(C, {"prompt": "a", "max_tokens": 1}, "connection: close")
        s.sendall(request[:-5])
        time.sleep(0.5)
        s.sendall(request[-5:])
        assert s.recv(100).startswith(b"HTTP/1.1 200")


def test_connections(serve: Any) -> None:
    with serve(max_connections=2) as wire:
        held = [wire.socket(), wire.socket()]
        time.sleep(0.1)
        refused = wire.raw(b"GET /health HTTP/1.1\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in refused.lower()
        held.pop().close()
        time.sleep(0.1)
        assert wire.get("/health").status == 200
        held.pop().close()


def test_idle_connections_are_closed(serve: Any) -> None:
    with serve(keep_alive_timeout=1) as wire, wire.socket() as s:
        s.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_all(s).startswith(b"HTTP/1.1 200")      # it ends, so the server has closed


def test_the_admission_policy() -> None:
    assert admits(num_new=1, num_waiting=0, needed_blocks=2, free_blocks=2, max_queue_len=0)
    assert not admits(num_new=1, num_waiting=0, needed_blocks=3, free_blocks=2, max_queue_len=0)
    assert admits(num_new=2, num_waiting=8, needed_blocks=3, free_blocks=0, max_queue_len=10)
    assert not admits(num_new=3, num_waiting=8, needed_blocks=3, free_blocks=0, max_queue_len=10)


LONG = {"prompt": "Hello", "max_tokens": WINDOW - 8, "ignore_eos": True, "temperature": 0}


def test_a_full_queue_refuses_and_a_short_one_serves(serve: Any, service: ModelService) -> None:
    """Row 79: 30 at once for 8 places."""
    body = LONG | {"max_tokens": 60}
    for limit in (100, 2):
        with serve(max_queue_len=limit) as wire, ThreadPoolExecutor(30) as pool:
            answers = list(pool.map(wire.post, [C] * 30, [body] * 30))
        statuses = [answer.status for answer in answers]
        assert len(statuses) == 30
        if limit == 100:
            assert set(statuses) == {200}
            assert len({answer.json["choices"][0]["text"] for answer in answers}) == 1
        else:
            refused = [answer for answer in answers if answer.status != 200]
            assert refused
            assert {answer.status for answer in refused} == {429}
            assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
            assert refused[0].error["code"] == "queue_full"


def test_waiting_too_long(serve: Any) -> None:
    with serve(max_queue_wait=0.05) as wire:
        batch = LONG | {"prompt": ["Hello"] * 24}
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(wire.post, [C] * 2, [batch] * 2))
        assert {answer.status for answer in answers} == {429}
        assert "waited" in answers[0].error["message"]


def test_deadlines(serve: Any, wire: Wire) -> None:
    batch = LONG | {"prompt": ["Hello"] * 16}
    with serve(request_timeout=0.1) as slow:
        answer = slow.post(C, batch)
    assert answer.status == 408
    assert answer.error["code"] == "deadline_exceeded"
    assert answer.headers["x-should-retry"] == "false"
    assert wire.post(C, batch, x_request_timeout="0.1").status == 408
    assert wire.post(C, LONG, x_request_timeout="60").status == 200
    for wrong in ("0", "-1", "nan", "inf", "soon"):
        assert wire.post(C, LONG, x_request_timeout=wrong).status == 400
    events = wire.post(C, batch | {"stream": True}, x_request_timeout="0.15").events
    assert events[-1]["error"]["code"] == "deadline_exceeded"


def test_priority_counts_only_where_it_is_enabled(serve: Any, service: ModelService,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    submit = service.engine.submit

    def watched(jobs: Any, *rest: Any, **named: Any) -> Any:
        seen.append(jobs[0].priority)
        return submit(jobs, *rest, **named)

    monkeypatch.setattr(service.engine, "submit", watched)
    for enabled in (False, True):
        with serve(enable_priority=enabled) as wire:
            assert wire.post(C, {"prompt": "a", "max_tokens": 1, "priority": 7}).status == 200
    assert seen == [0, 7]


@pytest.mark.parametrize("settings", [
    {"api_key": ("",)}, {"api_key": ("  ",)}, {"api_key": ("a b",)}, {"api_key": ("é",)}, {"served_model_name": ("",)},
    {"port": -1}, {"port": 65536}, {"max_stop_strings": 33}, {"max_stop_strings": 0}, {"max_queue_len": 0},
    {"drain_timeout": -1.0}, {"max_body_bytes": 0},
], ids=str)
def test_wrong_settings_do_not_start(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        ServerSettings(**settings)


@pytest.mark.parametrize("path", [C, "/tokenize"])
def test_a_bad_chunk_is_no_fault_of_ours(wire: Wire, caplog: pytest.LogCaptureFixture, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    assert wire.raw(head.encode() + b"ZZ\r\nabc").startswith(b"HTTP/1.1 400")
    time.sleep(0.1)      # what goes wrong would be logged after the answer
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
