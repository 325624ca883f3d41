"""Leaving clients, slow readers, failing steps, draining."""

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tiny_model import WINDOW
from wire import Wire, http_post, read_all, running_server

from jaxengine.engine.collect import NOT_FINITE
from jaxengine.server.context import ServerContext
from jaxengine.server.errors import ApiError
from jaxengine.server.generation import _sound
from jaxengine.server.lifecycle import Server
from jaxengine.server.model_service import ModelService
from jaxengine.server.settings import ServerSettings
from jaxengine.types import RequestOutput

C, H = "/v1/completions", "/v1/chat/completions"
LONG: dict[str, Any] = {"prompt": "Hello", "max_tokens": WINDOW - 8, "ignore_eos": True, "temperature": 0}


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 8])
def test_leaving_frees_everything(
    wire: Wire, service: ModelService, until_idle: Callable[[], bool], stream: bool, n: int
) -> None:
    many = ["Hello"] * (8 // n)
    body = LONG | {"prompt": many * 6, "n": n, "stream": stream}
    with wire.socket() as s:
        s.sendall(http_post(C, body))
        wait_for(lambda: service.engine.engine.scheduler.num_running > 0)
    assert until_idle()


@pytest.mark.usefixtures("unharmed")
def test_a_hundred_clients_leave(wire: Wire, service: ModelService, until_idle: Callable[[], bool]) -> None:
    """E5, E8: before the first token, in the queue, in the midst."""
    free = service.engine.engine.blocks.num_free
    for i in range(60):
        with wire.socket() as s:
            s.sendall(http_post(C, LONG | {"stream": i % 2 == 0}))
            if i % 3:
                time.sleep(0.001 * (i % 7))
            if i % 5 == 0:
                s.recv(1)
    assert until_idle()
    assert service.engine.engine.blocks.num_free == free


def test_a_reader_that_stops_reading_loses_its_connection(serve: Any, service: ModelService,
                                                           until_idle: Callable[[], bool]) -> None:
    with serve(stream_buffer_bytes=10_000, stream_stall_timeout=0.2) as wire, wire.socket(receive_buffer=4096) as s:
        body = LONG | {"prompt": ["Hello"] * 100, "logprobs": 20, "stream": True}
        s.sendall(http_post(C, body))
        wait_for(lambda: service.engine.engine.scheduler.num_running > 0)
        assert until_idle()
        time.sleep(0.1)
        assert b"[DONE]" not in read_all(s)


def test_health_is_live_while_texts_are_tokenised(serve: Any) -> None:
    """B9, with the bound on characters raised: the text has to be tokenised to know how many tokens it is."""
    with serve(max_body_bytes=40_000_000) as wire:
        object.__setattr__(wire.ctx.service, "max_prompt_chars", 10**9)
        answers = []
        body = json.dumps({"prompt": "the cat in the hat. " * 15_000, "max_tokens": 1}).encode()
        thread = threading.Thread(target=lambda: answers.append(wire.post(C, body)))
        thread.start()
        waits = []
        while thread.is_alive():
            start = time.monotonic()
            assert wire.get("/health").status == 200
            waits.append(time.monotonic() - start)
            time.sleep(0.02)
        object.__setattr__(wire.ctx.service, "max_prompt_chars", WINDOW * 4)
    assert answers[0].error["code"] == "context_length_exceeded"
    assert sorted(waits)[len(waits) // 2] < 1


def test_the_same_client_id_twice_at_once(wire: Wire) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: wire.post(C, LONG, x_request_id="same"), range(4)))
    assert [answer.status for answer in answers] == [200] * 4
    assert len({answer.json["id"] for answer in answers}) == 4


@pytest.fixture
def own(load: Callable[[], ModelService]) -> Iterator[ModelService]:
    """A service that the test may break."""
    service = load()
    yield service
    service.engine.close()


def context(service: ModelService | None, **settings: Any) -> ServerContext:
    return ServerContext(ServerSettings(port=0, **settings), ("tiny",), service=service)


def test_a_failing_step(own: ModelService, monkeypatch: pytest.MonkeyPatch) -> None:
    """E11: every open request gets an error, health says dead, and later requests are refused."""
    with running_server(context(own)) as wire:
        results: list[Any] = []
        streams = [threading.Thread(target=lambda s=s: results.append(wire.post(C, LONG | {
            "stream": s, "prompt": ["Hello"] * 100}))) for s in (True, False)]
        for thread in streams:
            thread.start()
        wait_for(lambda: own.engine.engine.scheduler.num_running > 0)
        time.sleep(0.2)

        def fail() -> None:
            raise RuntimeError("secret /path 0xdeadbeef")

        monkeypatch.setattr(own.engine.engine, "step", fail)
        for thread in streams:
            thread.join()
        assert wire.get("/health").status == 503
        assert wire.get("/health").json == {"status": "dead"}
        refused = wire.post(C, LONG)
        assert refused.status == 503
        assert "secret" not in refused.body.decode()
    assert {answer.status for answer in results} <= {200, 500}
    for answer in results:
        error = answer.events[-1]["error"] if answer.status == 200 else answer.error
        assert error["code"] == "engine_error"
        assert "secret" not in error["message"]


def test_the_process_ends_when_its_engine_dies(own: ModelService, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(None)
    server = Server(ctx)

    def fail() -> None:
        raise RuntimeError("the device caught fire")

    monkeypatch.setattr(own.engine.engine, "step", fail)

    async def main() -> None:
        running = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        server.load_in_background(lambda: own)
        while ctx.service is None:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(Wire(server).post, C, LONG)
        await asyncio.wait_for(running, 30)

    asyncio.run(main())
    assert isinstance(server.failure, RuntimeError)


def test_a_row_that_is_not_finite_fails_alone(wire: Wire, service: ModelService, greedy_text: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    collect = service.engine.engine._collector._take

    def take(seq: Any, state: Any, result: Any, i: int, *rest: Any) -> None:
        if state.request.prompt_token_ids == [1, 2, 3] and len(seq.token_ids) > 5:
            result.finite[i] = False
        collect(seq, state, result, i, *rest)

    monkeypatch.setattr(service.engine.engine._collector, "_take", take)
    bad = LONG | {"prompt": [1, 2, 3]}
    for fields in ({}, {"bad_words": ["x"]}):      # wishes that could leave no token do not make it the client's fault
        answer = wire.post(C, bad | fields)
        assert (answer.status, answer.error["code"]) == (500, "model_error")
    events = wire.post(C, bad | {"stream": True}).events
    assert events[-1]["error"]["code"] == "model_error"
    assert "choices" in events[0]
    good = wire.post(C, {"prompt": "Hello", "temperature": 0, "max_tokens": 8})
    assert good.json["choices"][0]["text"] == greedy_text


def test_tokens_before_an_error_are_sent() -> None:
    good = RequestOutput("a", None, [], [], finished=False)
    bad = RequestOutput("a", None, [], [], finished=True, error=NOT_FINITE)

    async def main() -> None:
        async def stream() -> AsyncIterator[Any]:
            yield [(0, good), (0, bad)]

        sound = _sound(stream())      # type: ignore[arg-type]
        assert await anext(sound) == [(0, good)]
        with pytest.raises(ApiError, match="not finite"):
            await anext(sound)

    asyncio.run(main())


def test_stuck(serve: Any, service: ModelService, monkeypatch: pytest.MonkeyPatch) -> None:
    step, gate = service.engine.engine.step, threading.Event()

    def slow() -> Any:
        gate.wait(20)
        return step()

    with serve(stuck_after=0.2) as wire:
        monkeypatch.setattr(service.engine.engine, "step", slow)
        thread = threading.Thread(target=lambda: wire.post(C, LONG | {"max_tokens": 2}))
        thread.start()
        wait_for(lambda: wire.get("/health").json["status"] == "stuck")
        assert wire.get("/health").status == 503
        gate.set()
        thread.join()
        assert wire.get("/health").status == 200


def test_loading_is_told(service: ModelService) -> None:
    ctx = context(None)
    with running_server(ctx) as wire:
        assert wire.get("/health").status == 503
        assert wire.get("/health").json == {"status": "loading"}
        refused = wire.post(C, LONG)
        assert refused.status == 503
        assert refused.headers["retry-after"]
        ctx.service = service
        assert wire.get("/health").status == 200


def test_draining(service: ModelService) -> None:
    ctx = context(service, drain_timeout=20.0)
    with running_server(ctx) as wire:
        answers = []
        body = LONG | {"prompt": ["Hello"] * 16, "stream": True}
        thread = threading.Thread(target=lambda: answers.append(wire.post(C, body)))
        thread.start()
        wait_for(lambda: bool(ctx.open_streams))
        wire.server.drain()
        wait_for(lambda: ctx.draining)
        assert wire.get("/health").json == {"status": "draining"}
        assert wire.post(C, LONG).status == 503
        thread.join()
    assert answers[0].events[-1] == "[DONE]"


def test_draining_ends(service: ModelService, until_idle: Callable[[], bool]) -> None:
    ctx = context(service, drain_timeout=0.1)
    with running_server(ctx) as wire:
        answers = []
        body = LONG | {"prompt": ["Hello"] * 100, "stream": True}
        thread = threading.Thread(target=lambda: answers.append(wire.post(C, body)))
        thread.start()
        wait_for(lambda: service.engine.engine.scheduler.num_running > 0)
        time.sleep(0.1)
        wire.server.drain()
        thread.join()
    assert answers[0].events[-1]["error"]["type"] == "service_unavailable_error"
    assert until_idle()


@pytest.fixture
def process(tiny_folder: Path, free_port: int, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "jaxengine.cli.main", "serve", str(tiny_folder), "--port", str(free_port),
               "--served-model-name", "tiny", "--max-num-seqs", "4", "--max-num-batched-tokens", "16", "--num-blocks",
               "60", "--warmup", "lazy", "--decode-buckets", "4", "--token-buckets", "16"]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAXENGINE_API_KEY": "from-the-environment"}
    running = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    yield running, free_port
    if running.poll() is None:
        running.kill()
    running.communicate()


def status(port: int) -> int | None:
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status
    except OSError:
        return None


def statuses_until_ready(port: int) -> set[int | None]:
    seen = set()
    while 200 not in seen:
        seen.add(status(port))
        time.sleep(0.1)
    return seen


@pytest.mark.slow
def test_a_process_drains_on_the_first_signal(process: tuple[subprocess.Popen[str], int]) -> None:
    running, port = process
    assert 503 in statuses_until_ready(port)      # it listened before the model was there
    body = json.dumps(LONG | {"model": "tiny", "stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", C, body, {"content-type": "application/json",
                                         "authorization": "Bearer from-the-environment"})
    response = connection.getresponse()
    assert response.status == 200
    running.send_signal(signal.SIGTERM)
    assert response.read().endswith(b"data: [DONE]\n\n")
    connection.close()
    assert running.wait(30) == 0
    assert running.stderr is not None
    log = running.stderr.read()
    assert "Traceback" not in log
    assert f"chat at http://127.0.0.1:{port}/" in log


@pytest.mark.slow
def test_a_second_signal_ends_at_once(process: tuple[subprocess.Popen[str], int]) -> None:
    running, port = process
    statuses_until_ready(port)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", C, json.dumps(LONG | {"prompt": ["Hello"] * 300, "stream": True}), {
        "content-type": "application/json", "authorization": "Bearer from-the-environment"})
    assert connection.getresponse().status == 200
    running.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    connection.close()
    assert running.wait(10) == 128 + signal.SIGTERM
