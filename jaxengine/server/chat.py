"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from jaxengine.engine.async_engine import Job
from jaxengine.server.answer_shape import AnswerShape, read_shape
from jaxengine.server.call import Call, dumps, quoted
from jaxengine.server.chat_stage import ChatDelta, ChatStage
from jaxengine.server.context import ServerContext
from jaxengine.server.errors import bad_request
from jaxengine.server.grammars import with_grammars
from jaxengine.server.logprobs import chat_logprobs, prompt_logprobs
from jaxengine.server.model_service import ModelService
from jaxengine.server.prompts import make_jobs, render_chat, tokenise
from jaxengine.server.protocol.requests import ChatRequest
from jaxengine.types import CompletionOutput, RequestOutput, SamplingParams


class ChatCall(Call):
    object_name, chunk_name = "chat.completion", "chat.completion.chunk"
    id_prefix = "chatcmpl"
    request: ChatRequest

    @classmethod
    async def prepare(cls, ctx: ServerContext, body: dict[str, Any], timeout: float | None = None) -> ChatCall:
        """Raises ApiError for whatever is wrong with the request."""
        service = ctx.serving()
        request = ChatRequest.read(body)
        ctx.model_name(request.model)
        request.check_limits(ctx.settings)
        if len(request.messages) > ctx.settings.max_messages:
            raise bad_request(f"messages has {len(request.messages)} entries; at most {ctx.settings.max_messages} are "
                              "allowed", "messages")
        shape = await ctx.text.run(lambda: read_shape(ctx.settings, service, request))
        params = shape.applied(_params(ctx, service, request))

        def work() -> list[Job]:
            text = render_chat(service, ctx.settings, request, shape.tools.shown if shape.tools else None)
            prompts = tokenise(
                service, request, [text], request.add_special_tokens, "messages", marked=ctx.settings.plain_user_content
            )
            return make_jobs(service, ctx.settings, prompts, params, _max_tokens(request), request, "messages")

        jobs = await with_grammars(service, await ctx.text.run(work), shape.param, ctx.settings.max_queue_wait)
        return cls(ctx, service, request, jobs, timeout, shape)

    def __init__(
        self, ctx: ServerContext, service: ModelService, request: ChatRequest, jobs: list[Job], timeout: float | None,
        shape: AnswerShape,
    ) -> None:
        super().__init__(ctx, service, request, jobs, timeout)
        self._shape = shape
        self._stages: dict[int, ChatStage] = {}      # by choice, from its first event on

    def make_stage(self) -> ChatStage:
        return self._shape.stage(self.jobs[0].prompt)

    def choice(self, index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        stage = self.make_stage()
        delta = stage.push(completion.text, finished=True)
        message: dict[str, Any] = {
            "role": "assistant", "content": delta.content or (None if delta.tool_calls else ""), "refusal": None,
        }
        if delta.reasoning_content:
            message["reasoning_content"] = delta.reasoning_content
        if delta.tool_calls:
            message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in delta.tool_calls]
        assert completion.finish_reason is not None
        return {
            "index": index, "message": message, "logprobs": self._logprobs(completion),
            "finish_reason": stage.finish_reason(completion.finish_reason), "stop_reason": completion.stop_reason,
            **self._extras(output, completion, first=True),
        }

    def deltas(self, index: int, output: RequestOutput, completion: CompletionOutput) -> list[str]:
        texts = []
        first = index not in self._stages
        if first:
            self._stages[index] = self.make_stage()
            texts.append(f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,'
                         '"finish_reason":null}')
        stage, reason = self._stages[index], completion.finish_reason
        delta = stage.push(completion.text, finished=reason is not None)
        logprobs, extras = self._logprobs(completion), self._extras(output, completion, first)
        if not (delta or logprobs or extras or reason):
            return texts
        ending = '"finish_reason":null' if reason is None else (
            f'"finish_reason":"{stage.finish_reason(reason)}","stop_reason":{dumps(completion.stop_reason)}'
        )
        more = "".join(f',"{name}":{dumps(value)}' for name, value in extras.items())
        texts.append(
            f'{{"index":{index},"delta":{_delta(delta)},"logprobs":{"null" if logprobs is None else dumps(logprobs)},'
            f"{ending}{more}}}"
        )
        return texts

    def _logprobs(self, completion: CompletionOutput) -> dict[str, Any] | None:
        request = self.request
        if not request.logprobs:
            return None
        content = chat_logprobs(
            self.service.tokenizer, completion.token_ids, completion.logprobs or [], request.top_logprobs or 0,
            request.return_tokens_as_token_ids,
        )
        return {"content": content, "refusal": None}

    def _extras(self, output: RequestOutput, completion: CompletionOutput, first: bool) -> dict[str, Any]:
        """vLLM's further fields of a choice."""
        request, extras = self.request, {}
        if first and request.prompt_logprobs is not None and output.prompt_logprobs is not None:
            extras["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, request.prompt_logprobs)
        if request.return_token_ids:
            if first:
                extras["prompt_token_ids"] = output.prompt_token_ids
            extras["token_ids"] = completion.token_ids
        return extras


def _delta(delta: ChatDelta) -> str:
    if not delta.reasoning_content and not delta.tool_calls:
        return f'{{"content":{quoted(delta.content)}}}' if delta.content else "{}"
    parts: dict[str, Any] = {}
    if delta.content:
        parts["content"] = delta.content
    if delta.reasoning_content:
        parts["reasoning_content"] = delta.reasoning_content
    if delta.tool_calls:
        parts["tool_calls"] = delta.tool_calls
    return dumps(parts)


def _max_tokens(request: ChatRequest) -> int | None:
    return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens


def _params(ctx: ServerContext, service: ModelService, request: ChatRequest) -> SamplingParams:
    explicit, limit = _max_tokens(request), ctx.settings.max_output_tokens
    if explicit == 0:
        raise bad_request("max_tokens=0 asks for nothing", "max_tokens")
    if explicit is not None and limit is not None and explicit > limit:
        raise bad_request(f"max_tokens={explicit} is more than the {limit} that this server allows", "max_tokens")
    default = min((t for t in (service.sampling_defaults.get("max_tokens"), limit) if t is not None), default=None)
    if default is not None:
        default = max(default, request.min_tokens)
    try:
        return request.sampling_params(
            service.sampling_defaults, max_tokens=default if explicit is None else explicit,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            prompt_logprobs=request.prompt_logprobs,
        )
    except ValueError as error:
        raise bad_request(str(error), str(error).partition("=")[0]) from None
