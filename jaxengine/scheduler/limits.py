"""Which requests can be served at all, and where their output must end. Pure checks, before any queueing."""

from __future__ import annotations

from jaxengine.config import SchedulerConfig
from jaxengine.types import Request

MAX_PRIORITY = 2**31 - 1


def max_num_tokens(request: Request, config: SchedulerConfig, max_model_len: int, pool_tokens: int) -> int:
    """Tokens of prompt and output at which a sequence ends: by max_tokens, max_model_len or the pool's size.

    Raises ValueError, with the two numbers, for a request that no state of the engine could serve.
    """
    num_prompt, params = len(request.prompt_token_ids), request.params
    if num_prompt == 0:
        raise ValueError("prompt_token_ids=[] has no token to start from; give at least one")
    if abs(request.priority) > MAX_PRIORITY:
        raise ValueError(f"priority={request.priority} must be within {MAX_PRIORITY} of zero")
    if request.priority and config.policy == "fcfs":
        raise ValueError(f"priority={request.priority} means nothing to policy='fcfs'; use policy='priority'")
    if params.n > config.max_num_seqs:
        raise ValueError(f"n={params.n} is larger than max_num_seqs={config.max_num_seqs}; lower n")
    room = max_model_len - (params.max_tokens != 0)
    _fits(num_prompt, room, f"max_model_len={max_model_len} leaves room for {room}", "shorten it")
    _fits(num_prompt, pool_tokens, f"the KV pool holds {pool_tokens}", "shorten it or raise num_blocks")
    if not config.enable_chunked_prefill:
        budget = config.max_num_batched_tokens
        _fits(num_prompt, budget, f"max_num_batched_tokens={budget}", "raise it or enable chunked prefill")
    # The last token is returned but never computed, so it needs no place in the pool.
    limit = min(max_model_len, pool_tokens + 1)
    return limit if params.max_tokens is None else min(limit, num_prompt + params.max_tokens)


def _fits(num_prompt: int, limit: int, what: str, remedy: str) -> None:
    if num_prompt > limit:
        raise ValueError(f"the prompt has {num_prompt} tokens, but {what}; {remedy}")
