"""The sampling fields that completions and chat share, and what they mean to the engine."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from jaxengine.server.errors import bad_request
from jaxengine.server.protocol.model import STRUCTURED_HINT, StrictModel
from jaxengine.server.settings import ServerSettings
from jaxengine.types import SamplingParams

INT64 = 2**63
MAX_COUNT = 2**31 - 1
_TOKEN_KEY = re.compile(r"0|[1-9][0-9]{0,18}")

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
TokenIds = list[Annotated[int, Field(ge=0, le=INT64)]]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]],
    WithJsonSchema({"type": "object", "propertyNames": {"pattern": f"^({_TOKEN_KEY.pattern})$"},
                    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}),
]
Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


STOP_SCHEMA = {
    "description": "Texts that end the output, at most 4 (an option of the server) of 1024 bytes.",
    "anyOf": [
        {"type": "null"}, {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 32},
    ],
}


class StreamOptions(StrictModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class SamplingFields(StrictModel):
    """OpenAI's fields, then vLLM's. A field that is absent takes what the checkpoint recommends."""

    model: str | None = Field(None, description="A served name; may be absent where one model is served.")
    n: Annotated[int, Field(ge=1, le=128)] = 1
    best_of: int | None = Field(None, description="Must equal n where it is given.")
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: Annotated[Any, WithJsonSchema(STOP_SCHEMA)] = None
    logit_bias: LogitBias | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=4096)

    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Unit | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    min_tokens: Count = 0
    ignore_eos: bool = False
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    allowed_token_ids: Annotated[TokenIds, Field(min_length=1)] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = Field(
        None, description="Keep this many tokens at the prompt's end.")
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = Field(False, description="Write tokens in logprobs as token_id:N.")
    priority: Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)] = Field(
        0, description="Lower runs first, where the server was started with --enable-priority; else without effect.")
    cache_salt: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Requests with different salts share no cached prefix.")

    refused: ClassVar[dict[str, str]] = {
        **{f"guided_{kind}": STRUCTURED_HINT for kind in (
            "json", "regex", "choice", "grammar", "json_object", "decoding_backend", "whitespace_pattern")},
        **dict.fromkeys(("regex", "ebnf", "json_schema", "grammar", "structural_tag"), STRUCTURED_HINT),
        "use_beam_search": "", "length_penalty": "it belongs to beam search", "early_stopping": "it belongs to beam "
        "search", "logits_processors": "", "custom_logit_processor": "", "custom_params": "", "logprob_token_ids": "",
        "prompt_embeds": "", "input_embeds": "", "mm_processor_kwargs": "", "kv_transfer_params": "", "vllm_xargs": "",
        "lora_path": "", "session_params": "", "return_hidden_states": "", "n_discard": "", "n_predict":
        "use max_tokens", "max_new_tokens": "use max_tokens", "spaces_between_special_tokens": "", "bootstrap_host": "",
        "repetition_detection": "", "thinking_token_budget": "",
    }
    harmless: ClassVar[dict[str, tuple[Any, ...]]] = {
        "use_beam_search": (False,), "length_penalty": (1, 1.0), "early_stopping": (False,),
        "spaces_between_special_tokens": (True,), "return_hidden_states": (False,),
    }

    @field_validator("stop")
    @classmethod
    def _are_texts(cls, value: Any) -> list[str]:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
            raise ValueError("must be a non-empty string or a list of such")
        return texts

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _keys_are_ids(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for key in value:
                if not _TOKEN_KEY.fullmatch(key):
                    raise ValueError("must have token ids as its keys, written as '42'")
        return value

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options is only for stream=true", "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def check_limits(self, settings: ServerSettings) -> None:
        """The limits that the server's flags set. Raises ApiError 400."""
        if self.best_of is not None and self.best_of != self.n:
            raise bad_request(f"best_of={self.best_of} must equal n={self.n}: ranking more is not supported", "best_of")
        stops = self.stop or []
        _at_most("stop", len(stops), settings.max_stop_strings, "strings")
        for text in stops:
            _at_most("stop", len(text.encode()), settings.max_stop_bytes, "bytes in a string")
        _at_most("n", self.n, settings.max_n)
        _at_most("stop_token_ids", len(self.stop_token_ids or ()), settings.max_stop_token_ids, "entries")
        _at_most("logit_bias", len(self.logit_bias or ()), settings.max_logit_bias, "entries")
        _at_most("bad_words", len(self.bad_words or ()), settings.max_bad_words, "entries")
        for word in self.bad_words or ():
            _at_most("bad_words", len(word.encode()), settings.max_stop_bytes, "bytes in a string")
        for name in ("logprobs", "top_logprobs"):
            _at_most(name, getattr(self, name, None) or 0, settings.max_logprobs)
        _at_most("prompt_logprobs", self.prompt_logprobs or 0, settings.max_logprobs)
        _at_most("user", len(self.user or ""), settings.max_user_chars, "characters")
        _at_most("cache_salt", len(self.cache_salt or ""), settings.max_cache_salt_chars, "characters")

    def sampling_params(self, defaults: dict[str, Any], **wishes: Any) -> SamplingParams:
        """wishes: max_tokens, logprobs and prompt_logprobs, which the endpoints read in their own ways.

        Raises ValueError as SamplingParams does.
        """
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        values = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return SamplingParams(**{**_chosen(defaults, names), **values, **wishes}, **{
            "n": self.n, "presence_penalty": self.presence_penalty, "frequency_penalty": self.frequency_penalty,
            "seed": self.seed, "stop": self.stop, "min_tokens": self.min_tokens, "ignore_eos": self.ignore_eos,
            "stop_token_ids": self.stop_token_ids, "allowed_token_ids": self.allowed_token_ids,
            "include_stop_str_in_output": self.include_stop_str_in_output, "bad_words": self.bad_words,
            "skip_special_tokens": self.skip_special_tokens,
            "logit_bias": {int(k): float(v) for k, v in self.logit_bias.items()} if self.logit_bias else None,
        })


def _chosen(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _at_most(name: str, value: int, limit: int, what: str = "") -> None:
    if value > limit:
        raise bad_request(f"{name} has {value} {what}; at most {limit} are allowed" if what else
                          f"{name}={value} is larger than {limit}", name)


Role = Literal["system", "developer", "user", "assistant", "tool"]
