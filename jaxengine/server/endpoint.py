"""From an HTTP exchange to an answer: reading the body, watching for the client's leaving, sending."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jaxengine.server.admission import check_text_queue
from jaxengine.server.call import Call
from jaxengine.server.context import ServerContext
from jaxengine.server.errors import ClientLeftError, bad_request
from jaxengine.server.generation import disconnected, until_done_or
from jaxengine.server.json_body import parse_object, read_body
from jaxengine.server.observer import Work
from jaxengine.server.sse import send_events

Prepare = Callable[[ServerContext, dict[str, Any], float | None], Awaitable[Call]]
Answer = Callable[[ServerContext, dict[str, Any]], Awaitable[dict[str, Any]]]

_SMALL_BODY = 64 * 1024      # below it, parsing takes less than a hop to another thread


def json_response(body: Any, status: int = 200) -> Response:
    return Response(json.dumps(body, ensure_ascii=False).encode(), status, media_type="application/json")


async def read_object(ctx: ServerContext, request: Request) -> dict[str, Any]:
    body = await read_body(request, ctx.settings.max_body_bytes)
    if len(body) <= _SMALL_BODY:
        return parse_object(body)
    return await ctx.text.run(lambda: parse_object(body))


class GenerationEndpoint:
    """An ASGI app that generates: one JSON object, or events where the body says `stream`."""

    def __init__(self, ctx: ServerContext, prepare: Prepare) -> None:
        self._ctx, self._prepare = ctx, prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ctx, request = self._ctx, Request(scope, receive)
        ctx.serving()
        body = await read_object(ctx, request)
        check_text_queue(ctx)
        answer = self._answer(scope, receive, send, body, client_timeout(request))
        if not await until_done_or(disconnected(receive), answer):
            raise ClientLeftError

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, body: dict[str, Any], timeout: float | None
    ) -> None:
        call = await self._prepare(self._ctx, body, timeout)
        call.arrival_time = scope["state"]["arrived"]
        scope["state"]["work"] = Work(call.model, call.request.user, call.request.stream, call.usage)
        if call.request.stream:
            settings = self._ctx.settings
            await send_events(scope, send, call.events(), self._ctx.observer, settings.stream_stall_timeout)
        else:
            await json_response(await call.response())(scope, receive, send)


class AnswerEndpoint:
    """An ASGI app that answers a JSON object with another."""

    def __init__(self, ctx: ServerContext, answer: Answer) -> None:
        self._ctx, self._answer = ctx, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ctx.serving()
        body = await read_object(self._ctx, Request(scope, receive))
        check_text_queue(self._ctx)
        await json_response(await self._answer(self._ctx, body))(scope, receive, send)


def client_timeout(request: HTTPConnection) -> float | None:
    """Seconds that the client gives the request, by the header X-Request-Timeout."""
    text = request.headers.get("x-request-timeout")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise bad_request("the X-Request-Timeout header must be a number of seconds above 0", "X-Request-Timeout")
    return seconds
