"""/v1/ws: requests come as JSON texts, and the events that SSE would send come back as JSON texts.

A request is the body of /v1/chat/completions (it has `messages`) or /v1/completions; `stream` is understood.
Each answer ends with the text [DONE], or with an error event. Requests are answered one after another; those
that come meanwhile wait, a few of them. Closing the connection aborts what runs.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from urllib.parse import urlsplit

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from jaxengine.server.chat import ChatCall
from jaxengine.server.completions import CompletionCall
from jaxengine.server.context import ServerContext
from jaxengine.server.endpoint import client_timeout
from jaxengine.server.errors import ApiError
from jaxengine.server.generation import until_done_or
from jaxengine.server.json_body import parse_object

MAX_WAITING = 16
_TOO_MANY, _POLICY = 1013, 1008


class WebSocketEndpoint:
    """A Starlette endpoint."""

    def __init__(self, ctx: ServerContext) -> None:
        self._ctx = ctx

    async def __call__(self, socket: WebSocket) -> None:
        self._check_origin(socket)
        self._ctx.serving()
        timeout = client_timeout(socket)
        await socket.accept()
        waiting: asyncio.Queue[str] = asyncio.Queue(MAX_WAITING)
        await until_done_or(self._read(socket, waiting), self._answer_all(socket, waiting, timeout))

    def _check_origin(self, socket: WebSocket) -> None:
        """A browser lets any page connect, so the page's origin must be this server or an allowed one."""
        origin, allowed = socket.headers.get("origin"), self._ctx.settings.allowed_origins
        if origin is None or origin in allowed or "*" in allowed:
            return
        if urlsplit(origin).netloc != socket.headers.get("host"):
            raise ApiError(403, "pages of another origin may not connect; see --allowed-origins")

    async def _read(self, socket: WebSocket, waiting: asyncio.Queue[str]) -> None:
        """Until the client leaves or sends more than may wait."""
        try:
            while True:
                waiting.put_nowait(await socket.receive_text())
        except WebSocketDisconnect:
            return
        except KeyError:      # a binary message
            await socket.close(_POLICY, "messages must be JSON texts")
        except asyncio.QueueFull:
            await socket.close(_TOO_MANY, f"more than {MAX_WAITING} requests are waiting")

    async def _answer_all(self, socket: WebSocket, waiting: asyncio.Queue[str], timeout: float | None) -> None:
        while socket.application_state is WebSocketState.CONNECTED:
            text = await waiting.get()
            try:
                await self._answer(socket, text, timeout)
            except ApiError as error:
                self._ctx.observer.refused(error)
                await socket.send_text(error.json())
            except TimeoutError:      # the client reads nothing; uvicorn's pings will find out
                return

    async def _answer(self, socket: WebSocket, text: str, timeout: float | None) -> None:
        body = parse_object(text) | {"stream": True}
        call = await (ChatCall if "messages" in body else CompletionCall).prepare(self._ctx, body, timeout)
        async with aclosing(call.events()) as steps:      # type: ignore[type-var]
            async for step in steps:
                for event in step:
                    async with asyncio.timeout(self._ctx.settings.stream_stall_timeout):
                        await socket.send_text(event)
        await socket.send_text("[DONE]")
