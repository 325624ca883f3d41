"""A server in a thread, and raw HTTP to talk to it."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jaxengine.server.context import ServerContext
from jaxengine.server.lifecycle import Server


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, whose shape is checked."""
        assert self.headers["content-type"] == "application/json"
        body = self.json
        assert set(body) == {"error"}, body
        assert set(body["error"]) == {"message", "type", "param", "code"}, body
        assert isinstance(body["error"]["message"], str)
        assert body["error"]["message"]
        return body["error"]

    @property
    def events(self) -> list[Any]:
        """The JSON of each event; "[DONE]" as it is."""
        assert self.headers["content-type"].startswith("text/event-stream")
        parts = self.body.decode().split("\n\n")
        assert parts[-1] == ""
        assert all(part.startswith("data: ") and "\n" not in part for part in parts[:-1])
        texts = [part.removeprefix("data: ") for part in parts[:-1]]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]


class Wire:
    def __init__(self, server: Server) -> None:
        self.server, self.ctx = server, server.ctx
        self.port = server.bound_port
        self.url = f"http://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """body: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        return self.request("POST", path, data, named)

    def socket(self, receive_buffer: int | None = None) -> socket.socket:
        s = socket.socket()
        if receive_buffer is not None:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.settimeout(60)
        s.connect(("127.0.0.1", self.port))
        return s

    def raw(self, data: bytes, close: bool = False) -> bytes:
        """Sends bytes as they are; returns all that comes until the server closes."""
        with self.socket() as s:
            s.sendall(data)
            if close:
                s.shutdown(socket.SHUT_WR)
            return read_all(s)


def read_all(s: socket.socket) -> bytes:
    data = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def http_post(path: str, body: Any, *headers: str) -> bytes:
    """A request's bytes."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(data)}",
             *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@contextmanager
def running_server(ctx: ServerContext) -> Iterator[Wire]:
    """The real server, in a thread; it is drained at the end."""
    server = Server(ctx)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="server", daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield Wire(server)
    finally:
        if thread.is_alive():
            server.drain()
        thread.join(60)
        ctx.text.close()
        assert not thread.is_alive()
