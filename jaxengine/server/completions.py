"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from jaxengine.engine.async_engine import Job
from jaxengine.server.call import Call, dumps, quoted
from jaxengine.server.context import ServerContext
from jaxengine.server.errors import bad_request
from jaxengine.server.grammars import with_grammars
from jaxengine.server.logprobs import Entry, LegacyLogprobs, prompt_logprobs
from jaxengine.server.model_service import ModelService
from jaxengine.server.prompts import TokenisedPrompt, make_jobs, split_prompts, tokenise
from jaxengine.server.protocol.requests import CompletionRequest
from jaxengine.types import CompletionOutput, RequestOutput, SamplingParams

DEFAULT_MAX_TOKENS = 16


class CompletionCall(Call):
    object_name = chunk_name = "text_completion"
    id_prefix = "cmpl"
    request: CompletionRequest

    @classmethod
    def read(cls, body: dict[str, Any]) -> CompletionRequest:
        return CompletionRequest.read(body)

    @classmethod
    async def prepare(cls, ctx: ServerContext, body: dict[str, Any], timeout: float | None = None) -> CompletionCall:
        """Raises ApiError for whatever is wrong with the request."""
        service = ctx.serving()
        request = cls.read(body)
        ctx.model_name(request.model)
        request.check_limits(ctx.settings)
        prompts = split_prompts(request.prompt, ctx.settings, request.n)
        form = request.form()
        params = _params(ctx, service, request).replace(structured_outputs=form[0] if form else None)

        def work() -> list[Job]:
            tokenised = tokenise(service, request, prompts, request.add_special_tokens)
            if request.echo:
                tokenised = [_with_text(service, request, prompt) for prompt in tokenised]
            return make_jobs(service, ctx.settings, tokenised, params, request.max_tokens, request)

        jobs = await with_grammars(
            service, await ctx.text.run(work), form[1] if form else None, ctx.settings.max_queue_wait
        )
        return cls(ctx, service, request, jobs, timeout)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._logprobs: dict[int, LegacyLogprobs] = {}      # by choice

    def choice(self, index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        text, logprobs, extras = self._parts(index, output, completion, first=True)
        return {
            "index": index, "text": text, "logprobs": logprobs, "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason, **extras,
        }

    def deltas(self, index: int, output: RequestOutput, completion: CompletionOutput) -> list[str]:
        first = index not in self._logprobs
        text, logprobs, extras = self._parts(index, output, completion, first)
        reason = completion.finish_reason
        if not (text or logprobs or extras or reason):
            return []
        more = "".join(f',"{name}":{dumps(value)}' for name, value in extras.items())
        return [
            f'{{"index":{index},"text":{quoted(text)},"logprobs":{"null" if logprobs is None else dumps(logprobs)},'
            + ('"finish_reason":null,"stop_reason":null' if reason is None else
               f'"finish_reason":"{reason}","stop_reason":{dumps(completion.stop_reason)}')
            + more + "}"
        ]

    def _parts(
        self, index: int, output: RequestOutput, completion: CompletionOutput, first: bool
    ) -> tuple[str, dict[str, Any] | None, dict[str, Any]]:
        """Text, logprobs and vLLM's further fields of a choice; with `first`, the prompt's as well."""
        request = self.request
        if first:
            self._logprobs[index] = LegacyLogprobs(
                self.service.tokenizer, request.logprobs or 0, request.return_tokens_as_token_ids
            )
        text, ids = completion.text, completion.token_ids
        entries: list[Entry | None] = [*(completion.logprobs or ())]
        if first and request.echo:
            text = (output.prompt or "") + text
            if request.logprobs is not None:
                ids, entries = output.prompt_token_ids + ids, [*(output.prompt_logprobs or ()), *entries]
        logprobs = None if request.logprobs is None else self._logprobs[index].arrays(ids, entries)
        extras: dict[str, Any] = {}
        if first and request.prompt_logprobs is not None and output.prompt_logprobs is not None:
            extras["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, request.prompt_logprobs)
        if request.return_token_ids:
            if first:
                extras["prompt_token_ids"] = output.prompt_token_ids
            extras["token_ids"] = completion.token_ids
        return text, logprobs, extras


def _params(ctx: ServerContext, service: ModelService, request: CompletionRequest) -> SamplingParams:
    limit = ctx.settings.max_output_tokens
    if request.max_tokens == 0 and not request.echo:
        raise bad_request("max_tokens=0 asks for nothing; it is only for echo=true", "max_tokens")
    if request.max_tokens is not None and limit is not None and request.max_tokens > limit:
        raise bad_request(f"max_tokens={request.max_tokens} is more than the {limit} that this server allows",
                          "max_tokens")
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = max(min(DEFAULT_MAX_TOKENS, limit or DEFAULT_MAX_TOKENS), request.min_tokens)
    wanted = [k for k in (request.prompt_logprobs, request.logprobs if request.echo else None) if k is not None]
    try:
        return request.sampling_params(
            service.sampling_defaults, max_tokens=max_tokens, logprobs=request.logprobs,
            prompt_logprobs=max(wanted, default=None),
        )
    except ValueError as error:
        raise bad_request(str(error), str(error).partition("=")[0]) from None


def _with_text(service: ModelService, request: CompletionRequest, prompt: TokenisedPrompt) -> TokenisedPrompt:
    """An echo repeats the text as it was sent; for ids, and what truncation left, what they stand for."""
    if prompt.text is not None:
        return prompt
    return TokenisedPrompt(
        prompt.token_ids, service.tokenizer.decode(prompt.token_ids, skip_special_tokens=request.skip_special_tokens)
    )
