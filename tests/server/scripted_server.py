"""The chat page in front of a model that says what the test wants, so that the page can be tested by itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from jaxengine.server.page import ChatPage


class ScriptedServer:
    """Set what it does; look at what it was asked."""

    def __init__(self) -> None:
        self.pieces = ["Hello", " there", "."]
        self.delay = 0.0                   # seconds between pieces
        self.key: str | None = None
        self.refusal: tuple[int, str, dict[str, str]] | None = None      # status, message, headers
        self.breaks_off: str | None = None                 # instead of an end: "silently", or an error's message
        self.models = ["tiny"]
        self.stats = {
            "status": "ready", "model": "tiny", "num_requests_running": 3, "num_requests_waiting": 7,
            "max_num_seqs": 32, "kv_cache_usage": 0.25, "prompt_tokens": 0, "generation_tokens": 0,
            "prefix_cache_queries": 0, "prefix_cache_hits": 0,
        }
        self.speed = 100                   # tokens a second that /stats tells of
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.sent = 0
        self.left = asyncio.Event()
        self.app = Starlette(routes=[
            Route("/", ChatPage().get),
            Route("/v1/models", self._models),
            Route("/stats", self._stats),
            Route("/v1/chat/completions", self._answer, methods=["POST"]),
            Route("/v1/completions", self._answer, methods=["POST"]),
        ])

    def _locked(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return _error(401, "a valid API key is needed")

    async def _models(self, request: Request) -> Response:
        data = [{"id": name, "object": "model"} for name in self.models]
        return self._locked(request) or JSONResponse({"object": "list", "data": data})

    async def _stats(self, request: Request) -> Response:
        now = time.monotonic()
        shown = {**self.stats, "time": now}
        if self.stats["status"] != "loading":
            shown["generation_tokens"] = int(now * self.speed)
        return self._locked(request) or JSONResponse(shown)

    async def _answer(self, request: Request) -> Response:
        if locked := self._locked(request):
            return locked
        self.bodies.append(await request.json())
        self.paths.append(request.url.path)
        if self.refusal is not None:
            status, message, headers = self.refusal
            return _error(status, message, headers)
        return StreamingResponse(self._events("chat" in request.url.path), media_type="text/event-stream")

    async def _events(self, chat: bool) -> AsyncIterator[str]:
        try:
            for number, piece in enumerate(self.pieces):
                delta = {"delta": {"content": piece}} if chat else {"text": piece}
                yield _event({"choices": [{"index": 0, **delta, "finish_reason": None}], "usage": None})
                self.sent = number + 1
                await asyncio.sleep(self.delay)
            if self.breaks_off == "silently":
                return
            if self.breaks_off is not None:
                yield _event({"error": {"message": self.breaks_off, "type": "server_error"}})
                return
            yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None})
            yield _event({"choices": [], "usage": {"completion_tokens": len(self.pieces)}})
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.left.set()
            raise


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": message, "type": "x", "param": None, "code": None}}, status, headers)
