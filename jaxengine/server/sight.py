"""What can be seen of the server from outside: metrics, the load, and the chat page."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from jaxengine.server.context import ServerContext
from jaxengine.server.endpoint import json_response
from jaxengine.server.errors import ApiError


class Sight:
    """The GET endpoints /metrics and /stats."""

    def __init__(self, ctx: ServerContext) -> None:
        self._ctx = ctx

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text. Rendered in a thread: it takes some milliseconds, in which tokens should go on."""
        if not self._ctx.settings.metrics:
            raise ApiError(404, "this server was started with --no-metrics")
        render = self._ctx.observer.exposition.render
        body, content_type = await asyncio.to_thread(render, request.headers.get("accept"))
        return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    async def stats(self, request: Request) -> Response:
        """The few figures that the chat page shows, without a model's figures while it is loading."""
        return json_response({"status": self._ctx.status, **self._ctx.observer.exposition.snapshot()})
