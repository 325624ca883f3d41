"""What the server says about itself and its model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from jaxengine import __version__
from jaxengine.server.context import READY, ServerContext
from jaxengine.server.endpoint import json_response


class Info:
    """The GET endpoints."""

    def __init__(self, ctx: ServerContext) -> None:
        self._ctx = ctx

    async def health(self) -> Response:
        status = self._ctx.status
        return json_response({"status": status}, 200 if status == READY else 503)

    async def version(self) -> Response:
        return json_response({"version": __version__})

    async def models(self) -> Response:
        return json_response({"object": "list", "data": [self._card(name) for name in self._ctx.model_names]})

    async def model(self, id: str) -> Response:
        return json_response(self._card(self._ctx.model_name(id)))

    async def model_info(self) -> Response:
        service = self._ctx.serving()
        return json_response({
            "model_path": self._ctx.model_names[0], "tokenizer_path": self._ctx.model_names[0], "is_generation": True,
            "max_model_len": service.window, "vocab_size": service.vocab_size,
            "preferred_sampling_params": service.sampling_defaults or None,
        })

    async def server_info(self) -> Response:
        service = self._ctx.serving()
        settings = {name: value for name, value in asdict(self._ctx.settings).items() if name != "api_key"}
        engine = service.engine.engine
        return json_response({
            "version": __version__, "server": settings, "engine": asdict(engine.config),
            "num_blocks": engine.blocks.num_blocks, "max_model_len": service.window,
            "num_running": engine.scheduler.num_running, "num_waiting": service.engine.num_waiting,
            "kv_cache_usage": engine.blocks.usage, "num_free_blocks": engine.blocks.num_free,
        })

    def _card(self, name: str) -> dict[str, Any]:
        service = self._ctx.service
        return {
            "id": name, "object": "model", "created": service.created if service else int(self._ctx.started),
            "owned_by": "jaxengine", "root": self._ctx.model_names[0], "parent": None,
            "max_model_len": service.window if service else None,
        }
