"""From a request's prompt or messages to jobs: shape, tokens, and whether they fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxengine.engine.async_engine import Job
from jaxengine.server.errors import ApiError, bad_request, shown
from jaxengine.server.model_service import ModelService
from jaxengine.server.plain_content import encode_marked, mark_specials
from jaxengine.server.protocol.requests import ChatRequest
from jaxengine.server.protocol.sampling import SamplingFields
from jaxengine.server.settings import ServerSettings
from jaxengine.types import SamplingParams


@dataclass(frozen=True)
class TokenisedPrompt:
    """text: as the client sent it or as the template wrote it; None where it sent ids."""

    token_ids: list[int]
    text: str | None


def split_prompts(value: Any, settings: ServerSettings, n: int, name: str = "prompt") -> list[str | list[int]]:
    """The prompts in a `prompt` of any of its four forms. Raises ApiError 400 for every other form."""
    if isinstance(value, str) or (isinstance(value, list) and value and _is_id(value[0])):
        value = [value]
    if not isinstance(value, list) or not value:
        raise bad_request(f"{name} must be a non-empty text, list of token ids, or list of one kind of these", name)
    if len(value) > settings.max_prompts:
        raise bad_request(f"{name} holds {len(value)} prompts; at most {settings.max_prompts} are allowed", name)
    if len(value) * n > settings.max_sequences:
        raise bad_request(f"{len(value)} prompts with n={n} are {len(value) * n} sequences; at most "
                          f"{settings.max_sequences} are allowed", name)
    kind = str if isinstance(value[0], str) else list
    for at, prompt in enumerate(value):
        _check_prompt(prompt, kind, f"{name}[{at}]", name)
    return value


def _check_prompt(prompt: Any, kind: type, where: str, name: str) -> None:
    if not isinstance(prompt, kind):
        raise bad_request(f"{where} is {shown(prompt)}: {name} must hold texts alone or lists of token ids alone", name)
    if not prompt:
        raise bad_request(f"{where} is empty; a prompt needs at least one token", name)
    if kind is list and not all(map(_is_id, prompt)):
        wrong = next(item for item in prompt if not _is_id(item))
        raise bad_request(f"{where} holds {shown(wrong)}, which is not a token id", name)


def _is_id(item: Any) -> bool:
    return type(item) is int


def tokenise(
    service: ModelService, request: SamplingFields, prompts: list[str | list[int]], add_special_tokens: bool,
    name: str = "prompt", marked: bool = False,
) -> list[TokenisedPrompt]:
    """Slow: for a thread. marked: texts went through mark_specials. Raises ApiError 400."""
    for prompt in prompts:
        if isinstance(prompt, str) and len(prompt) > service.max_prompt_chars:
            raise _too_long(f"the prompt has {len(prompt)} characters, which are surely more tokens than the "
                            f"{service.window} of the context", name)
    tokenised = []
    for prompt in prompts:
        text = prompt if isinstance(prompt, str) else None
        encode = partial(encode_marked, service.tokenizer) if marked else service.tokenizer.encode
        ids = encode(prompt, add_special_tokens) if isinstance(prompt, str) else prompt
        for token_id in ids if text is None else ():
            if not 0 <= token_id < service.vocab_size:
                raise bad_request(f"{name} holds the token id {shown(token_id)}, which is outside the vocabulary of "
                                  f"{service.vocab_size}", name)
        tokenised.append(_truncated(service, request, TokenisedPrompt(ids, text), name))
    return tokenised


def _truncated(
    service: ModelService, request: SamplingFields, prompt: TokenisedPrompt, name: str
) -> TokenisedPrompt:
    keep = request.truncate_prompt_tokens
    if keep is not None and keep > service.window:
        raise bad_request(f"truncate_prompt_tokens={keep} is more than the {service.window} tokens of the context",
                          "truncate_prompt_tokens")
    if not prompt.token_ids:
        raise bad_request(f"{name} has no tokens; a prompt needs at least one", name)
    if keep is None or len(prompt.token_ids) <= keep:
        return prompt
    return TokenisedPrompt(prompt.token_ids[-keep:], None)


def render_chat(
    service: ModelService, settings: ServerSettings, request: ChatRequest, tools: list[dict[str, Any]] | None = None
) -> str:
    """The conversation's text, by the model's template, with marks where `plain_user_content` is on.

    Slow: for a thread. Raises ApiError 400.
    """
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    if settings.plain_user_content:
        messages = mark_specials(service.tokenizer, messages)
    if "developer" not in (service.tokenizer.chat_template or ""):
        for message in messages:
            if message["role"] == "developer":      # newer than most templates, and it means the same
                message["role"] = "system"
    try:
        return service.tokenizer.apply_chat_template(
            messages, add_generation_prompt=request.opens_turn, continue_final_message=request.continue_final_message,
            tools=tools, **(request.chat_template_kwargs or {}),
        )
    except TypeError:      # a keyword twice
        raise bad_request("chat_template_kwargs must not name what the request has fields for",
                          "chat_template_kwargs") from None
    except ValueError as error:
        raise bad_request(str(error), "messages") from None


def make_jobs(
    service: ModelService, settings: ServerSettings, prompts: list[TokenisedPrompt], params: SamplingParams,
    explicit: int | None, request: SamplingFields, name: str = "prompt",
) -> list[Job]:
    """explicit: the max_tokens that the client sent. Raises ApiError 400 for what can never fit."""
    jobs = []
    entries = 0
    for prompt in prompts:
        length = len(prompt.token_ids)
        _check_fit(service, length, params, explicit, name)
        entries += length * (1 + (params.prompt_logprobs or 0)) if params.prompt_logprobs is not None else 0
        priority = request.priority if settings.enable_priority else 0
        jobs.append(Job(prompt.token_ids, params, prompt.text, priority, request.cache_salt))
    if entries > settings.max_prompt_logprob_entries:
        raise bad_request(f"prompt_logprobs would return {entries} entries; at most "
                          f"{settings.max_prompt_logprob_entries} are allowed", "prompt_logprobs")
    for job in jobs:
        try:
            service.engine.check(job)
        except ValueError as error:
            raise bad_request(str(error), _param_in(str(error), name)) from None
    return jobs


def _check_fit(
    service: ModelService, length: int, params: SamplingParams, explicit: int | None, name: str
) -> None:
    window = service.window
    if length + (params.max_tokens != 0) > window:
        raise _too_long(f"the prompt has {length} tokens, but the context of {window} must hold it and output", name)
    if explicit is not None and length + explicit > window:
        raise _too_long(f"the prompt has {length} tokens and max_tokens={explicit}, together {length + explicit}, but "
                        f"the context holds {window}", "max_tokens")
    if params.min_tokens > window - length:
        raise bad_request(f"min_tokens={params.min_tokens} is more than the {window - length} tokens left for output",
                          "min_tokens")


def _param_in(message: str, default: str) -> str:
    name = message.partition("=")[0].partition(":")[0].partition(" ")[0]
    return name if name in SamplingParams.__dataclass_fields__ else default


def _too_long(message: str, param: str) -> ApiError:
    return bad_request(message, param, "context_length_exceeded")
