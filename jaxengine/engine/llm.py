"""`LLM`: the engine for scripts and notebooks, with the names of vLLM's offline API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from jaxengine.config import EngineConfig
from jaxengine.engine.engine import Engine
from jaxengine.engine.load import load_engine
from jaxengine.engine.mail import Mail, Outputs
from jaxengine.engine.output import OutputKind
from jaxengine.tokenizer import Tokenizer
from jaxengine.types import RequestOutput, SamplingParams

Prompt = str | dict[str, Any] | list[int]
Message = dict[str, Any]
T = TypeVar("T")


class LLM:
    """A model that generates.

        llm = LLM("smollm2-135m-instruct", max_num_seqs=16)
        for result in llm.generate(["The sky is", "Two and two"], SamplingParams(max_tokens=20)):
            print(result.outputs[0].text)

    model: a demo name, a folder, a .gguf file or a hub id. chat_template: a Jinja template or a path to
    one, in place of the checkpoint's. accept_terms: the licence terms of a gated demo model are accepted.
    Every other option is a field of EngineConfig or its parts, as `dtype="float32"`. Threads may share an LLM.
    """

    def __init__(
        self, model: str, *, chat_template: str | None = None, accept_terms: bool = False, progress: bool = True,
        **options: Any,
    ) -> None:
        self._loaded = load_engine(
            model, EngineConfig.from_options(**options), chat_template=chat_template, accept_terms=accept_terms,
            progress=progress,
        )
        self._mail = Mail(self._loaded.engine)

    @property
    def engine(self) -> Engine:
        return self._loaded.engine

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.engine.tokenizer is not None
        return self.engine.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def default_sampling_params(self) -> SamplingParams:
        """What the checkpoint's generation_config.json recommends, on SamplingParams' own defaults."""
        return SamplingParams(**self._loaded.sampling_defaults)

    get_default_sampling_params = default_sampling_params

    def generate(
        self, prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
        use_tqdm: bool = True, priority: list[int] | None = None,
    ) -> list[RequestOutput]:
        """Completes each prompt: a text, {"prompt": text}, {"prompt_token_ids": ids} or a list of ids.

        One SamplingParams for all or one each; None takes the model's defaults. Results come in the
        prompts' order. A prompt that can never fit raises ValueError before anything runs.
        """
        return self._run([self._encode(p) for p in _as_list(prompts)], sampling_params, use_tqdm, priority)

    def chat(
        self, messages: list[Message] | list[list[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *, use_tqdm: bool = True,
        add_generation_prompt: bool = True, continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None, chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, each a list of {"role": ..., "content": ...}."""
        conversations: list[Any] = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [
            self._encode_chat(
                conversation, add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message, tools=tools, **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        return self._run(prompts, sampling_params, use_tqdm, None)

    def stream(
        self, prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
        output_kind: OutputKind = "cumulative",
    ) -> Outputs:
        """Yields every request's output as it grows. Leaving the loop early aborts what still runs."""
        return self._stream([self._encode(p) for p in _as_list(prompts)], sampling_params, output_kind)

    def stream_chat(
        self, messages: list[Message], sampling_params: SamplingParams | None = None, *,
        output_kind: OutputKind = "cumulative", **template_options: Any,
    ) -> Outputs:
        """Like `stream`, for one conversation."""
        return self._stream([self._encode_chat(messages, **template_options)], sampling_params, output_kind)

    def loglikelihood(
        self, texts: Sequence[Prompt | tuple[Prompt, Prompt]], *, use_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """Log-probability (natural log) of each text, or of each continuation given its context.

        An entry is a prompt, scored from its second token on, or a pair (context, continuation), scored on
        the continuation's tokens alone. Returns (sum of log-probabilities, whether greedy decoding would
        have produced exactly those tokens) for each.
        """
        prompts, starts = [], []
        for entry in texts:
            context, whole = self._split(entry)
            prompts.append((whole, None))
            starts.append(context)
        params = SamplingParams(max_tokens=0, prompt_logprobs=0, temperature=0.0, detokenize=False)
        results = []
        for output, start in zip(self._run(prompts, params, use_tqdm, None), starts, strict=True):
            assert output.prompt_logprobs is not None
            entries = [next(iter(e.values())) for e in output.prompt_logprobs[start:] if e is not None]
            results.append((sum(e.logprob for e in entries), all(e.rank == 1 for e in entries)))
        return results

    def close(self) -> None:
        """Ends what runs and frees the weights and the pool."""
        for request_id in list(self.engine.requests):
            self.engine.abort(request_id)
        self.engine.runner.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> tuple[list[int], str | None]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt), prompt
        if isinstance(prompt, dict):
            if "prompt_token_ids" in prompt:
                return list(prompt["prompt_token_ids"]), prompt.get("prompt")
            if "prompt" in prompt:
                return self.tokenizer.encode(prompt["prompt"]), prompt["prompt"]
            raise ValueError(f"a prompt dict needs 'prompt' or 'prompt_token_ids', not {sorted(prompt)}")
        return list(prompt), None

    def _encode_chat(self, messages: list[Message], **options: Any) -> tuple[list[int], str | None]:
        text = self.tokenizer.apply_chat_template(messages, **options)
        return self.tokenizer.encode(text, add_special_tokens=False), text

    def _split(self, entry: Any) -> tuple[int, list[int]]:
        """-> (index of the first token to score, all ids)."""
        if not isinstance(entry, tuple):
            return 1, self._encode(entry)[0]
        context, continuation = entry
        if isinstance(context, str) and isinstance(continuation, str):
            # Tokenised as one text, as it would be read; the context's own tokens say where it ends.
            whole = self.tokenizer.encode(context + continuation)
            return max(1, min(len(self.tokenizer.encode(context)), len(whole) - 1)), whole
        left, right = self._encode(context)[0], self._encode(continuation)[0]
        return max(1, len(left)), left + right

    def _add_all(
        self, prompts: list[tuple[list[int], str | None]], params: SamplingParams | Sequence[SamplingParams] | None,
        kind: OutputKind, priority: list[int] | None = None,
    ) -> list[str]:
        params = params if params is not None else self.default_sampling_params()
        each = _one_each(params, len(prompts), "sampling_params")
        for p in each:
            if not isinstance(p, SamplingParams):
                raise ValueError(f"sampling_params holds {p!r}, which is not a SamplingParams")
        priorities = _one_each(priority if priority is not None else 0, len(prompts), "priority")
        ids: list[str] = []
        try:
            for (token_ids, text), p, rank in zip(prompts, each, priorities, strict=True):
                ids.append(self.engine.add_request(token_ids, p, prompt=text, priority=rank, output_kind=kind))
        except BaseException:
            for request_id in ids:
                self.engine.abort(request_id)
            raise
        return ids

    def _run(
        self, prompts: list[tuple[list[int], str | None]], params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool, priority: list[int] | None,
    ) -> list[RequestOutput]:
        with self._mail.lock:
            ids = self._add_all(prompts, params, "final_only", priority)
            outputs = Outputs(self._mail, ids)
        done: dict[str, RequestOutput] = {}
        tokens = 0
        with tqdm(total=len(ids), desc="Requests", unit="req", disable=not use_tqdm) as bar:
            self.engine.ledger.on_wait = lambda key: bar.set_postfix_str(f"compiling {key}")
            try:
                for output in outputs:
                    done[output.request_id] = output
                    bar.update()
                    tokens += sum(len(c.token_ids) for c in output.outputs)
                    bar.set_postfix_str(f"{tokens} tokens", refresh=False)
            finally:
                self.engine.ledger.on_wait = None      # the bar is gone
        return [done[request_id] for request_id in ids]

    def _stream(
        self, prompts: list[tuple[list[int], str | None]], params: SamplingParams | Sequence[SamplingParams] | None,
        kind: OutputKind,
    ) -> Outputs:
        with self._mail.lock:
            return Outputs(self._mail, self._add_all(prompts, params, kind))


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    single = isinstance(prompts, (str, dict)) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return [prompts] if single else list(prompts)  # type: ignore[list-item]


def _one_each(value: T | Sequence[T], count: int, name: str) -> list[T]:
    if not isinstance(value, (list, tuple)):
        return [value] * count  # type: ignore[list-item]
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} entries for {count} prompts")
    return list(value)
