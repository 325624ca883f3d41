"""What GET /openapi.json says of each route: its body with the bounds, its answer, the error model on every status."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

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
    "/v1/models/{id:path}": ("One of them", ModelCard),
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

Operation = dict[str, Any]      # further arguments of FastAPI's add_api_route


def operations() -> dict[str, Operation]:
    """What is documented, by path."""
    return {path: _post(path) for path in _POST} | {path: _get(path) for path in _GET}


def add_request_models(document: dict[str, Any], model_names: tuple[str, ...]) -> None:
    """Puts the models of the bodies, which the endpoints read themselves, among the document's components.

    Their field `model` lists what is served, so that who generates requests from the document reaches it.
    """
    bodies = [body for _, models, _ in _POST.values() for body in models]
    _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=_REF + "{model}")
    for schema in schemas["$defs"].values():
        if "model" in schema["properties"]:
            schema["properties"]["model"]["anyOf"][0]["enum"] = list(model_names)
    document["components"]["schemas"] |= schemas["$defs"]


def _post(path: str) -> Operation:
    summary, bodies, answer = _POST[path]
    refs = [{"$ref": _REF + body.__name__} for body in bodies]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    responses: dict[int | str, dict[str, Any]] = _errors(_POST_ERRORS)
    if path in _STREAMS:
        responses[200] = {"content": {"text/event-stream": {}}}      # no schema: readers differ on what it is of
    return {
        "methods": ["POST"], "summary": summary, "response_model": answer, "responses": responses,
        "openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
    }


def _get(path: str) -> Operation:
    summary, answer = _GET[path]
    responses = _errors(_GET_ERRORS)
    responses["default"] = {"model": ErrorBody, "description": "Any other error"}      # else FastAPI adds its 422
    if path == "/health":
        responses[503] = {"model": answer, "description": "Not ready"}
    return {"summary": summary, "response_model": answer, "responses": responses}


def _errors(statuses: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody, "description": text} for status, text in statuses.items()}
