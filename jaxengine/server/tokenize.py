"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from jaxengine.server.context import ServerContext
from jaxengine.server.errors import bad_request
from jaxengine.server.model_service import ModelService
from jaxengine.server.plain_content import encode_marked
from jaxengine.server.prompts import render_chat
from jaxengine.server.protocol.model import StrictModel
from jaxengine.server.protocol.requests import ChatRequest
from jaxengine.server.protocol.sampling import INT64


class TokenizeRequest(StrictModel):
    """A text; or `messages` with the fields of a chat that its template reads."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChatRequest(ChatRequest):
    return_token_strs: bool = False


class DetokenizeRequest(StrictModel):
    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=INT64)]]


async def tokenize(ctx: ServerContext, body: dict[str, Any]) -> dict[str, Any]:
    service = ctx.serving()
    is_chat = body.get("messages") is not None
    if is_chat and body.get("prompt") is not None:
        raise bad_request("give either prompt or messages", "prompt")
    request = TokenizeChatRequest.read(body) if is_chat else TokenizeRequest.read(body)
    ctx.model_name(request.model)
    ids = await ctx.text.run(lambda: _encode(ctx, service, request))
    return {
        "count": len(ids), "max_model_len": service.window, "tokens": ids,
        "token_strs": [service.tokenizer.token_text(i) for i in ids] if request.return_token_strs else None,
    }


async def detokenize(ctx: ServerContext, body: dict[str, Any]) -> dict[str, Any]:
    service = ctx.serving()
    request = DetokenizeRequest.read(body)
    ctx.model_name(request.model)
    for token_id in request.tokens:
        if token_id >= service.vocab_size:
            raise bad_request(f"tokens holds {token_id}; the vocabulary has {service.vocab_size} tokens", "tokens")
    return {"prompt": await ctx.text.run(lambda: service.tokenizer.decode(request.tokens, skip_special_tokens=False))}


def _encode(ctx: ServerContext, service: ModelService, request: TokenizeRequest | TokenizeChatRequest) -> list[int]:
    if isinstance(request, TokenizeRequest):
        return service.tokenizer.encode(request.prompt, request.add_special_tokens)
    text = render_chat(service, ctx.settings, request)
    if ctx.settings.plain_user_content:
        return encode_marked(service.tokenizer, text, request.add_special_tokens)
    return service.tokenizer.encode(text, request.add_special_tokens)
