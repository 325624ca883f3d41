"""/v1/ws gives the events that SSE gives."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tiny_model import WINDOW
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from wire import Wire

from jaxengine.server.model_service import ModelService

pytestmark = pytest.mark.usefixtures("unharmed")
C, H = "/v1/completions", "/v1/chat/completions"
BODY: dict[str, Any] = {"prompt": "Hello", "temperature": 0, "max_tokens": 8}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 8}


def address(wire: Wire) -> str:
    return f"ws://127.0.0.1:{wire.port}/v1/ws"


def events(socket: Any) -> list[Any]:
    """One answer's events, up to its end."""
    got = []
    while True:
        text = socket.recv(timeout=60)
        got.append(text if text == "[DONE]" else json.loads(text))
        if text == "[DONE]" or "error" in got[-1]:
            return got


def drain(socket: Any) -> None:
    while True:
        socket.recv(timeout=60)


def told(events: list[Any]) -> list[Any]:
    return [e if isinstance(e, str) else [e["choices"], e.get("usage")] for e in events]


@pytest.mark.parametrize(("path", "body"), [(C, BODY), (H, CHAT), (C, BODY | {
    "n": 2, "logprobs": 1, "stream_options": {"include_usage": True}})], ids=["completion", "chat", "options"])
def test_the_same_events(wire: Wire, path: str, body: dict[str, Any]) -> None:
    expected = told(wire.post(path, body | {"stream": True}).events)
    with connect(address(wire)) as socket:
        for _ in range(2):      # one connection serves many requests
            socket.send(json.dumps(body))
            assert told(events(socket)) == expected


def test_errors_leave_the_connection_open(wire: Wire) -> None:
    with connect(address(wire)) as socket:
        for wrong in ("not json", "[]", json.dumps(BODY | {"n": 0}), json.dumps(BODY | {"prompt": [10**6]}), "{}"):
            socket.send(wrong)
            assert events(socket)[-1]["error"]["type"] == "invalid_request_error"
        socket.send(json.dumps(BODY))
        assert events(socket)[-1] == "[DONE]"


def test_leaving_aborts(wire: Wire, service: ModelService, until_idle: Callable[[], bool]) -> None:
    with connect(address(wire), close_timeout=0.5) as socket:
        socket.send(json.dumps(BODY | {"prompt": ["Hello"] * 40, "max_tokens": WINDOW - 8, "ignore_eos": True}))
        socket.recv(timeout=60)
    assert until_idle()


def flood(socket: Any, text: str) -> None:
    for _ in range(30):
        socket.send(text)
    drain(socket)


def test_too_many_waiting_and_binary_messages(wire: Wire) -> None:
    long = json.dumps(BODY | {"prompt": ["Hello"] * 40, "max_tokens": WINDOW - 8, "ignore_eos": True})
    with connect(address(wire)) as socket, pytest.raises(ConnectionClosed):      # which may be while we still send
        flood(socket, long)
    assert socket.close_code == 1013
    with connect(address(wire)) as socket:
        socket.send(b"\x00")
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)


def test_who_may_connect(serve: Any) -> None:
    with serve(api_key=("k",), allowed_origins=("http://a.example",)) as wire:
        with pytest.raises(InvalidStatus) as refused:
            connect(address(wire))
        assert refused.value.response.status_code == 401
        headers = {"Authorization": "Bearer k"}
        with connect(address(wire), additional_headers=headers) as socket:
            socket.send(json.dumps(BODY))
            assert events(socket)[-1] == "[DONE]"
        with connect(address(wire), additional_headers=headers, origin="http://a.example") as socket:  # type: ignore[arg-type]
            socket.send(json.dumps(BODY))
            assert events(socket)[-1] == "[DONE]"
        with pytest.raises(InvalidStatus) as refused:
            connect(address(wire), additional_headers=headers, origin="http://b.example")      # type: ignore[arg-type]
        assert refused.value.response.status_code == 403
