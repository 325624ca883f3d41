"""The application: routes, and the layers around them."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp

from jaxengine.server.chat import ChatCall
from jaxengine.server.completions import CompletionCall
from jaxengine.server.context import ServerContext
from jaxengine.server.endpoint import AnswerEndpoint, GenerationEndpoint
from jaxengine.server.generate import GenerateCall
from jaxengine.server.guard import Guard
from jaxengine.server.info import Info
from jaxengine.server.page import ChatPage
from jaxengine.server.sight import Sight
from jaxengine.server.tokenize import detokenize, tokenize
from jaxengine.server.websocket import WebSocketEndpoint


def routes(ctx: ServerContext) -> list[BaseRoute]:
    info, sight = Info(ctx), Sight(ctx)
    return [
        Route("/v1/completions", GenerationEndpoint(ctx, CompletionCall.prepare), methods=["POST"]),
        Route("/v1/chat/completions", GenerationEndpoint(ctx, ChatCall.prepare), methods=["POST"]),
        Route("/generate", GenerationEndpoint(ctx, GenerateCall.prepare), methods=["POST"]),
        Route("/tokenize", AnswerEndpoint(ctx, tokenize), methods=["POST"]),
        Route("/detokenize", AnswerEndpoint(ctx, detokenize), methods=["POST"]),
        WebSocketRoute("/v1/ws", WebSocketEndpoint(ctx).__call__),
        Route("/v1/models", info.models),
        Route("/v1/models/{id:path}", info.model),
        Route("/health", info.health),
        Route("/metrics", sight.metrics),
        Route("/stats", sight.stats),
        Route("/", ChatPage().get),
        Route("/version", info.version),
        Route("/openapi.json", info.openapi),
        Route("/model_info", info.model_info),
        Route("/get_model_info", info.model_info),
        Route("/server_info", info.server_info),
    ]


def create_app(ctx: ServerContext) -> ASGIApp:
    """The ASGI application over one context, whose model may be loaded later."""
    known = routes(ctx)
    ctx.observer.endpoints = frozenset(route.path for route in known if isinstance(route, Route | WebSocketRoute))
    app: ASGIApp = Guard(Router(known, redirect_slashes=False), ctx)
    origins = ctx.settings.allowed_origins
    if origins:
        app = CORSMiddleware(
            app, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    return app
