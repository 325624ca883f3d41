"""The shapes of responses, for the published OpenAPI document. The server writes them by hand."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class UsageBody(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None = None


class LegacyLogprobsBody(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ChoiceExtras(BaseModel):
    """vLLM's further fields, where they are asked for."""

    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionChoice(ChoiceExtras):
    index: int
    text: str
    logprobs: LegacyLogprobsBody | None
    finish_reason: Literal["stop", "length"]


class CompletionBody(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobsBody(BaseModel):
    content: list[ContentLogprob]
    refusal: None


class ChatMessageBody(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(ChoiceExtras):
    index: int
    message: ChatMessageBody
    logprobs: ChatLogprobsBody | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatBody(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class TokensBody(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TextBody(BaseModel):
    prompt: str


class HealthBody(BaseModel):
    status: Literal["ready", "loading", "draining", "stuck", "dead"]


class VersionBody(BaseModel):
    version: str
