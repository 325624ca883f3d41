"""The application: routes, and the layers around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.security import HTTPBearer
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxengine import __version__
from jaxengine.server.chat import ChatCall
from jaxengine.server.completions import CompletionCall
from jaxengine.server.context import ServerContext
from jaxengine.server.endpoint import AnswerEndpoint, GenerationEndpoint
from jaxengine.server.generate import GenerateCall
from jaxengine.server.guard import Guard
from jaxengine.server.info import Info
from jaxengine.server.openapi import Operation, add_request_models, operations
from jaxengine.server.page import ChatPage
from jaxengine.server.sight import Sight
from jaxengine.server.tokenize import detokenize, tokenize
from jaxengine.server.websocket import WebSocketEndpoint


class Api(FastAPI):
    """FastAPI for routing and the OpenAPI document, without its error layers: Guard gives every error one shape.

    Bodies are read by the endpoints themselves, more strictly than FastAPI would (see json_body and protocol).
    """

    def __init__(self, model_names: tuple[str, ...], **options: Any) -> None:
        super().__init__(**options)
        self._model_names = model_names

    def build_middleware_stack(self) -> ASGIApp:
        return AsyncExitStackMiddleware(self.router)      # the routes' own need

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            add_request_models(super().openapi(), self._model_names)
        assert self.openapi_schema is not None
        return self.openapi_schema


class _Answer(Response):
    """An endpoint that answers for itself, as an ASGI application, in a response's place."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self.background = app, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _handler(app: ASGIApp) -> Callable[[], Awaitable[Response]]:
    async def endpoint() -> Response:
        return _Answer(app)

    return endpoint


def create_api(ctx: ServerContext) -> Api:
    """Every route. The bearer scheme only shows in the document: Guard is what checks keys."""
    keys = [Depends(HTTPBearer(auto_error=False))] if ctx.settings.api_key else []
    api = Api(ctx.model_names, title="jaxengine", version=__version__, docs_url=None, redoc_url=None,
              redirect_slashes=False, dependencies=keys)
    info, sight = Info(ctx), Sight(ctx)
    endpoints: dict[str, Callable[..., Any]] = {
        "/v1/completions": _handler(GenerationEndpoint(ctx, CompletionCall.prepare)),
        "/v1/chat/completions": _handler(GenerationEndpoint(ctx, ChatCall.prepare)),
        "/generate": _handler(GenerationEndpoint(ctx, GenerateCall.prepare)),
        "/tokenize": _handler(AnswerEndpoint(ctx, tokenize)),
        "/detokenize": _handler(AnswerEndpoint(ctx, detokenize)),
        "/v1/models": info.models,
        "/v1/models/{id:path}": info.model,
        "/health": info.health,
        "/version": info.version,
        "/model_info": info.model_info,
        "/get_model_info": info.model_info,
        "/server_info": info.server_info,
        "/metrics": sight.metrics,
        "/stats": sight.stats,
        "/": ChatPage().get,
    }
    documented: dict[str, Operation] = operations()
    for path, endpoint in endpoints.items():
        operation = documented.get(path, {"include_in_schema": False})
        api.add_api_route(path, endpoint, **operation)
        if "POST" not in operation.get("methods", ()):
            api.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    api.add_api_websocket_route("/v1/ws", WebSocketEndpoint(ctx).__call__)
    return api


def create_app(ctx: ServerContext) -> ASGIApp:
    """The ASGI application over one context, whose model may be loaded later."""
    api = create_api(ctx)
    ctx.observer.endpoints = frozenset(r.path for r in api.routes if isinstance(r, Route | WebSocketRoute))
    app: ASGIApp = Guard(api, ctx)
    origins = ctx.settings.allowed_origins
    if origins:
        app = CORSMiddleware(
            app, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    return app
