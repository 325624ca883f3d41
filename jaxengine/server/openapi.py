"""GET /openapi.json: what there is, with bounds, and the error model on every status that may come."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from jaxengine import __version__
from jaxengine.server.generate import GenerateRequest
from jaxengine.server.protocol.requests import ChatRequest, CompletionRequest
from jaxengine.server.protocol.responses import (
    ChatBody,
    CompletionBody,
    ErrorBody,
    HealthBody,
    ModelCard,
    ModelList,
    TextBody,
    TokensBody,
    VersionBody,
)
from jaxengine.server.tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest

_REF = "#/components/schemas/"

# Path -> what it does, the body it reads (several: one of them), the body it answers with (None: any JSON).
_POST: dict[str, tuple[str, tuple[type[BaseModel], ...], type[BaseModel] | None]] = {
    "/v1/completions": ("Complete prompts", (CompletionRequest,), CompletionBody),
    "/v1/chat/completions": ("Answer a conversation", (ChatRequest,), ChatBody),
    "/generate": ("Complete prompts, as SGLang does", (GenerateRequest,), None),
    "/tokenize": ("Text or messages to token ids", (TokenizeRequest, TokenizeChatRequest), TokensBody),
    "/detokenize": ("Token ids to text", (DetokenizeRequest,), TextBody),
}
_GET: dict[str, tuple[str, type[BaseModel] | None]] = {
    "/v1/models": ("What is served", ModelList),
    "/v1/models/{id}": ("One of them", ModelCard),
    "/health": ("200 where requests are served", HealthBody),
    "/version": ("The engine's version", VersionBody),
    "/model_info": ("The model", None),
    "/get_model_info": ("The model", None),
    "/server_info": ("Settings and load", None),
}
_POST_ERRORS = {
    400: "A value that cannot be served", 401: "No valid key", 404: "No such model", 408: "Its time was over",
    413: "The body is too large", 415: "Not JSON", 429: "The queue is full", 500: "An error inside the server",
    503: "Loading, draining or dead",
}
_GET_ERRORS = {401: "No valid key", 404: "Not found", 500: "An error inside the server", 503: "Not ready"}
_STREAMS = ("/v1/completions", "/v1/chat/completions", "/generate")


def document(has_keys: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    paths = {path: {"post": _post(path)} for path in _POST} | {path: {"get": _get(path)} for path in _GET}
    inputs = [model for _, models, _ in _POST.values() for model in models]
    outputs = [model for _, _, model in _POST.values() if model] + [model for _, model in _GET.values() if model]
    _, schemas = models_json_schema(
        [(model, "validation") for model in [*inputs, *dict.fromkeys(outputs), ErrorBody]],
        ref_template=_REF + "{model}",
    )
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    result = {"openapi": "3.1.0", "info": {"title": "jaxengine", "version": __version__}, "paths": paths,
              "components": components}
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        result["security"] = [{"key": []}]
    return result


def _post(path: str) -> dict[str, Any]:
    summary, bodies, answer = _POST[path]
    refs = [{"$ref": _REF + body.__name__} for body in bodies]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": _answer(answer, path in _STREAMS)} | _errors(_POST_ERRORS),
    }


def _get(path: str) -> dict[str, Any]:
    summary, answer = _GET[path]
    errors = _errors(_GET_ERRORS)
    if path == "/health":
        errors["503"] = _answer(answer, False)
    operation = {"summary": summary, "responses": {"200": _answer(answer, False)} | errors}
    if "{id}" in path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def _answer(model: type[BaseModel] | None, streams: bool) -> dict[str, Any]:
    content: dict[str, Any] = {
        "application/json": {"schema": {} if model is None else {"$ref": _REF + model.__name__}}
    }
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "Done", "content": content}


def _errors(statuses: dict[int, str]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REF + ErrorBody.__name__}}}
    return {str(status): {"description": text, "content": content} for status, text in statuses.items()}
