"""Keys, origins, hosts, and bytes that are no HTTP."""

from collections.abc import Iterator
from typing import Any

import pytest
from wire import Wire, http_post

C = "/v1/completions"
BODY = {"prompt": "a", "max_tokens": 1}


@pytest.fixture(scope="module")
def locked(serve: Any) -> Iterator[Wire]:
    with serve(api_key=("first-key", "second-key")) as wire:
        yield wire


@pytest.mark.parametrize("header", [
    None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer FIRST-KEY", "Bearer first-ke", "Bearer first-key2",
    "first-key", "Basic first-key", "Bearer first-key second-key", "Bearerfirst-key", "Token first-key", "Bearer \xe9",
])
def test_wrong_keys(locked: Wire, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    answer = locked.post(C, BODY, **headers)
    assert answer.status == 401
    assert answer.error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "first-key" not in answer.body.decode()


@pytest.mark.parametrize("header", ["Bearer first-key", "bearer second-key", "BEARER first-key", "Bearer  first-key"])
def test_right_keys(locked: Wire, header: str) -> None:
    assert locked.post(C, BODY, authorization=header).status == 200


@pytest.mark.parametrize("path", [
    "/v1/models", "/v1/models/tiny", "/version", "/model_info", "/get_model_info", "/server_info", "/openapi.json",
    "/metrics", "/nothing", "//health", "/v1/../health", "/HEALTH", "/health/", "/%2e/health", "/docs", "/redoc",
])
def test_everything_but_health_is_guarded(locked: Wire, path: str) -> None:
    assert locked.get(path).status == 401
    assert locked.get("/health").status == 200


@pytest.mark.parametrize("path", [C, "/v1/chat/completions", "/tokenize", "/detokenize", "/generate", "/v1/responses"])
def test_everything_that_is_posted_is_guarded(locked: Wire, path: str) -> None:
    assert locked.post(path, BODY).status == 401
    assert locked.request("OPTIONS", path).status == 401


def test_hosts(serve: Any) -> None:
    with serve(allowed_hosts=("localhost", "[::1]")) as wire:
        assert wire.get("/health").status == 403
        for host, status in (("localhost", 200), ("localhost:1234", 200), ("LOCALHOST", 200), ("[::1]:80", 200),
                             ("evil.example", 403), ("localhost.evil.example", 403), ("", 403)):
            assert wire.get("/health", host=host).status == status, host


def test_cors_is_off_unless_it_is_asked_for(serve: Any, wire: Wire) -> None:
    assert "access-control-allow-origin" not in wire.get("/health", origin="http://a.example").headers
    with serve(allowed_origins=("http://a.example",), api_key=("k",)) as open_wire:
        headers = open_wire.get("/health", origin="http://a.example").headers
        assert headers["access-control-allow-origin"] == "http://a.example"
        assert "access-control-allow-credentials" not in headers
        assert "access-control-allow-origin" not in open_wire.get("/health", origin="http://b.example").headers
        preflight = open_wire.request("OPTIONS", C, None, {
            "origin": "http://a.example", "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        })
        assert preflight.status == 200


@pytest.mark.parametrize("data", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n\x00",
    b"GET /health HTTP/9.9\r\n\r\n", b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
    b"hello\r\n\r\n",
    b"GET /health HTTP/1.1\r\nx\x01: y\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n\r\n", b"CONNECT a.example:80 HTTP/1.1\r\n\r\n",
], ids=lambda data: repr(data[:25]))
def test_what_is_no_http(wire: Wire, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answer = wire.raw(data, close=True)
    assert answer == b"" or b" 400 " in answer[:20] or b" 405 " in answer[:20] or b" 404 " in answer[:20], answer
    if answer:
        assert b'{"error": {"message": ' in answer
    assert "Traceback" not in caplog.text
    assert wire.get("/health").status == 200


def test_old_and_odd_http(wire: Wire) -> None:
    assert wire.raw(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    absolute = b"GET http://evil.example/health HTTP/1.1\r\nconnection: close\r\n\r\n"
    assert wire.raw(absolute).startswith(b"HTTP/1.1 200")
    head = wire.request("HEAD", "/health")
    assert head.status == 200
    assert head.body == b""
    two = http_post(C, BODY) + http_post(C, BODY, "connection: close")      # pipelined
    assert wire.raw(two).count(b"HTTP/1.1 200") == 2
    ranged = wire.get("/version", range="bytes=0-0,1-1")
    assert ranged.status == 200


UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
MANY = "".join(f"X-{i}: a\r\n" for i in range(130))


@pytest.mark.parametrize("head", [
    f"POST {C} HTTP/1.1\r\nHost: x\r\n{UPGRADE}{KEY}Content-Length: 2\r\n\r\n{{}}",
    f"GET /v1/ws HTTP/1.1\r\nHost: x\r\n{UPGRADE}{KEY}Content-Length: 5\r\n\r\nhello",
    f"GET /v1/ws HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n",
    f"GET /v1/ws HTTP/1.1\r\nHost: x\r\n{UPGRADE}{KEY}X-Long: {'a' * 20000}\r\n\r\n",
    f"GET /v1/ws HTTP/1.1\r\nHost: x\r\n{UPGRADE}{KEY}{MANY}\r\n",
], ids=["post", "body", "no key", "long header", "many headers"])
def test_a_handshake_that_is_none_is_answered_and_closed(wire: Wire, head: str) -> None:
    answer = wire.raw(head.encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"error"' in answer
