"""uvicorn's HTTP protocol with the limits that it lacks: header bytes and time, body time and rate, connections.

Parse errors and limits answer in the API's error shape and close. The unsent bytes of a response are bounded
by the transport's buffer: `send` waits while it is full, and `scope["extensions"]["jaxengine.cut"]` ends a
connection at once, whatever is unsent.
"""

from __future__ import annotations

import asyncio
import http
import socket
import uuid
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jaxengine.server.errors import ApiError
from jaxengine.server.settings import ServerSettings

_RATE_CHECK = 5.0      # seconds between looks at a slow body
# What the library behind WebSockets takes; it answers nothing to a handshake that is larger.
_MAX_HANDSHAKE_HEADERS, _MAX_HANDSHAKE_LINE = 100, 8000
_LINGER = 2.0          # a refused body is read and dropped so long, that the client may see the refusal


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. `settings` comes from a subclass that `limited_protocol` makes."""

    settings: ServerSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = True
        self._header_bytes = 0
        self._body_bytes = 0
        self._body_start = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self.settings.stream_buffer_bytes)
        kernel_side = transport.get_extra_info("socket")
        if kernel_side is not None:      # else the kernel takes some megabytes before we hear of a slow reader
            kernel_side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.settings.stream_buffer_bytes)
        if len(self.connections) > self.settings.max_connections:
            self._refuse(ApiError(503, "too many connections are open; try again later", headers={"Retry-After": "1"}))
            return
        self._arm(self.settings.header_timeout, self._header_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_headers and self._timer is None:      # the next request of a kept connection
            self._arm(self.settings.header_timeout, self._header_timed_out)
        while data and not self._refused and not self.transport.is_closing():
            piece, data = data, b""
            if self._in_headers:
                limit = self.settings.max_header_bytes
                room = limit - self._header_bytes
                if room == 0:
                    self._refuse(ApiError(431, f"the request's headers are larger than {limit} bytes"))
                    return
                piece, data = piece[:room], piece[room:]
                self._header_bytes += len(piece)
            super().data_received(piece)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = self._body_bytes = 0
        self._disarm()
        super().on_headers_complete()
        upgrades = self.parser is not None and self.parser.should_upgrade() and self._should_upgrade()
        if upgrades and not self._is_handshake():
            self._refuse(ApiError(400, "a WebSocket is opened by a plain GET without a body"))
            return
        if self.scope is not None:
            self.scope.setdefault("extensions", {})["jaxengine.cut"] = self.transport.abort  # type: ignore[typeddict-item]
        self._body_start = self.loop.time()
        self._arm(self.settings.body_timeout, self._check_body_rate)

    def _is_handshake(self) -> bool:
        headers = list(self.scope["headers"])
        names = {name for name, _ in headers}
        return (
            self.scope["method"] == "GET" and {b"content-length", b"transfer-encoding"}.isdisjoint(names)
            and b"sec-websocket-key" in names and len(headers) <= _MAX_HANDSHAKE_HEADERS
            and max(len(name) + len(value) for name, value in headers) <= _MAX_HANDSHAKE_LINE
            and len(self.url) <= _MAX_HANDSHAKE_LINE
        )

    def handle_websocket_upgrade(self) -> None:
        if not self._refused:
            super().handle_websocket_upgrade()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_headers = True
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_headers and not self.transport.is_closing():      # answered before the body was there
            self._arm(_LINGER, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "the request is not valid HTTP"))

    def _check_body_rate(self) -> None:
        elapsed = self.loop.time() - self._body_start
        if self._body_bytes < elapsed * self.settings.min_body_rate:
            self._refuse(ApiError(408, f"the body did not come within {self.settings.body_timeout:g} s"))
        else:
            self._arm(_RATE_CHECK, self._check_body_rate)

    def _header_timed_out(self) -> None:
        if self._header_bytes == 0:      # nothing was asked, so there is nothing to answer
            self.transport.close()
            return
        self._refuse(ApiError(408, f"the headers did not come within {self.settings.header_timeout:g} s"))

    def _refuse(self, error: ApiError) -> None:
        """Answers without the application, where no response is under way, and closes."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._disarm()
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_plain_response(error))
            if cycle is not None and not cycle.response_complete:
                cycle.response_started = cycle.response_complete = True
                cycle.message_event.set()
        self.transport.close()

    def _arm(self, seconds: float, action: Any) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, action)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def limited_protocol(settings: ServerSettings) -> type[LimitedHttpProtocol]:
    """The class that uvicorn makes one instance a connection of."""
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), {"settings": settings})


def _plain_response(error: ApiError) -> bytes:
    body = error.json().encode()
    lines = [
        f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}", "content-type: application/json",
        f"content-length: {len(body)}", "connection: close", f"x-request-id: {uuid.uuid4().hex}",
        *(f"{k}: {v}" for k, v in error.headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
