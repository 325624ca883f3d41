"""The outermost layer: request ids, who may come in, and the one error shape for whatever goes wrong.

Everything is guarded unless it is listed here as open, on the same path that routing sees.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxengine.server.context import ServerContext
from jaxengine.server.errors import ApiError, ClientLeftError, shown
from jaxengine.server.observer import Exchange

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/"})      # "/" is the chat page, which holds no data and asks for the key
_CLIENT_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_LEFT = 499


class Guard:
    """ASGI middleware around the router."""

    def __init__(self, app: ASGIApp, ctx: ServerContext) -> None:
        self._app, self._ctx = app, ctx
        self._keys = [_digest(key.encode()) for key in ctx.settings.api_key]
        self._open = OPEN_PATHS | ({"/metrics"} if ctx.settings.open_metrics else set())
        self._hosts = {host.lower().encode() for host in ctx.settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        scope["app"] = self._app      # so the router raises what it cannot route
        try:
            self._check(scope)
            await self._app(scope, receive, exchange.send)
        except (ApiError, HTTPException) as raised:
            await exchange.refuse(_as_api_error(scope, raised), receive)
        except ClientLeftError:
            exchange.status = _LEFT
        except Exception as raised:
            # Our own bug: the log has its trace, the client an id to name it by.
            log.error("request %s failed", exchange.request_id, exc_info=raised)
            error = ApiError(500, f"an error inside the server; the request id is {exchange.request_id}")
            if exchange.status is not None:
                exchange.error = error
                raise
            await exchange.refuse(error, receive)
        finally:
            self._report(exchange)

    def _check(self, scope: Scope) -> None:
        headers = _headers(scope)
        if self._hosts and _host(headers.get(b"host", b"")) not in self._hosts:
            raise ApiError(403, "this Host is not served; see --allowed-hosts")
        if self._keys and scope["path"] not in self._open and not self._knows(headers.get(b"authorization", b"")):
            raise ApiError(
                401, "a valid API key is needed: send the header Authorization: Bearer KEY", code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _knows(self, authorization: bytes) -> bool:
        """Every key is compared, in constant time, whatever was sent."""
        scheme, _, key = authorization.strip().partition(b" ")
        digest = _digest(key.strip())
        same = [hmac.compare_digest(digest, known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(same)

    def _report(self, exchange: _Exchange) -> None:
        observer = self._ctx.observer
        if exchange.error is not None:
            observer.refused(exchange.error)
        scope = exchange.scope
        observer.exchange_ended(Exchange(
            exchange.request_id, scope.get("method", "WEBSOCKET"), scope["path"], exchange.status or _LEFT,
            exchange.start, time.monotonic(), exchange.error, scope["state"].get("work"),
        ))


class _Exchange:
    """One exchange under way: its id, and what was sent."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope, self._send = scope, send
        self.start = time.monotonic()
        self.status: int | None = None
        self.error: ApiError | None = None
        asked = _headers(scope).get(b"x-request-id", b"")
        self.request_id = asked.decode() if _CLIENT_ID.fullmatch(asked) else uuid.uuid4().hex
        scope.setdefault("state", {}).update(request_id=self.request_id, arrived=self.start)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            _add_header(message, b"x-request-id", self.request_id.encode())
        elif message["type"] == "websocket.accept":
            self.status = 101
        await self._send(message)

    async def refuse(self, error: ApiError, receive: Receive) -> None:
        self.error = error
        if self.status is not None:
            raise error      # a response has begun, and its own code should have told of this
        if self.scope["type"] == "websocket":
            self.status = error.status
            await _refuse_websocket(self.scope, self._send, error)
            return
        await error.response()(self.scope, receive, self.send)


async def _refuse_websocket(scope: Scope, send: Send, error: ApiError) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": error.json().encode()})


def _as_api_error(scope: Scope, raised: ApiError | HTTPException) -> ApiError:
    if isinstance(raised, ApiError):
        return raised
    path, method = shown(scope["path"]), shown(scope.get("method", ""))
    message = {
        404: f"there is nothing at {path}; GET /openapi.json lists what there is",
        405: f"{path} does not answer {method}",
    }.get(raised.status_code, str(raised.detail))
    return ApiError(raised.status_code, message, headers=raised.headers)


def _host(header: bytes) -> bytes:
    """The Host header without its port."""
    name = re.sub(rb":[0-9]*$", b"", header) if not header.endswith(b"]") else header
    return name.lower()


def _headers(scope: Scope) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def _add_header(message: MutableMapping[str, Any], name: bytes, value: bytes) -> None:
    message["headers"] = [*message.get("headers", ()), (name, value)]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
