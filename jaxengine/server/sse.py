"""Server-sent events: one `data:` line an event, as OpenAI streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.types import Scope, Send

from jaxengine.server.errors import ApiError
from jaxengine.server.observer import Observer

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


async def send_events(
    scope: Scope, send: Send, events: AsyncIterator[list[str]], observer: Observer, stall_timeout: float
) -> None:
    """Streams to the end. The status goes out with the first event, so an error before it is a plain response.

    A later error is the last event, and [DONE] does not follow. A reader whose buffer stays full for
    `stall_timeout` seconds loses its connection.
    """
    async with aclosing(events) as steps:      # type: ignore[type-var]
        first = await anext(steps)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            await _send(send, first, stall_timeout)
            async for step in steps:
                await _send(send, step, stall_timeout)
        except ApiError as error:
            observer.refused(error)
            last = f"data: {error.json()}\n\n"
        except TimeoutError:
            scope.get("extensions", {}).get("jaxengine.cut", lambda: None)()
            return
        else:
            last = "data: [DONE]\n\n"
    await send({"type": "http.response.body", "body": last.encode(), "more_body": False})


async def _send(send: Send, step: list[str], stall_timeout: float) -> None:
    body = "".join([f"data: {event}\n\n" for event in step]).encode()
    async with asyncio.timeout(stall_timeout):
        await send({"type": "http.response.body", "body": body, "more_body": True})
