"""POST /generate: SGLang's own endpoint, by way of a completion."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, WithJsonSchema

from jaxengine.server.call import dumps
from jaxengine.server.completions import CompletionCall
from jaxengine.server.errors import bad_request
from jaxengine.server.protocol.model import STRUCTURED_HINT, StrictModel
from jaxengine.server.protocol.requests import PROMPT_SCHEMA, CompletionRequest
from jaxengine.types import CompletionOutput, RequestOutput

DEFAULT_NEW_TOKENS = 128

# Name in sampling_params -> the field of a completion.
_NAMES = {
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
    **{name: name for name in (
        "n", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "logit_bias")},
}


class GenerateRequest(StrictModel):
    model_config = ConfigDict(strict=True, extra="ignore", json_schema_extra={"oneOf": [
        {"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in ("text", "input_ids")
    ]})

    text: Annotated[Any, WithJsonSchema({"oneOf": PROMPT_SCHEMA["oneOf"][:2]})] = None
    input_ids: Annotated[Any, WithJsonSchema({"oneOf": PROMPT_SCHEMA["oneOf"][2:]})] = None
    sampling_params: dict[str, Any] = Field({}, description="By SGLang's names, as max_new_tokens (128).")
    stream: bool = False

    refused: ClassVar[dict[str, str]] = {
        "return_logprob": "use logprobs of /v1/completions", "input_embeds": "", "image_data": "", "audio_data": "",
        "lora_path": "", "session_params": "", "custom_logit_processor": "", "return_hidden_states": "",
    }
    harmless: ClassVar[dict[str, tuple[Any, ...]]] = {"return_logprob": (False,), "return_hidden_states": (False,)}

    def completion(self) -> CompletionRequest:
        """Raises ApiError 400."""
        if (self.text is None) == (self.input_ids is None):
            raise bad_request("give either text or input_ids", "text")
        params = {name: value for name, value in self.sampling_params.items() if value is not None}
        for name in params.keys() & {"regex", "ebnf", "json_schema", "structural_tag"}:
            raise bad_request(f"sampling_params.{name} is not supported; {STRUCTURED_HINT} of /v1/completions", name)
        body = {_NAMES[name]: value for name, value in params.items() if name in _NAMES}
        prompt = self.input_ids if self.text is None else self.text
        return CompletionRequest.read({"max_tokens": DEFAULT_NEW_TOKENS, **body, "prompt": prompt,
                                       "stream": self.stream, "return_token_ids": True})


class GenerateCall(CompletionCall):
    """Its events hold the whole text so far, as SGLang's do."""

    @classmethod
    def read(cls, body: dict[str, Any]) -> CompletionRequest:
        return GenerateRequest.read(body).completion()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._so_far: dict[int, tuple[str, list[int]]] = {}      # by choice

    def choice(self, index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        return {
            "text": completion.text, "output_ids": completion.token_ids,
            "meta_info": {
                "id": f"{self.id}-{index}", "finish_reason": _reason(completion),
                "prompt_tokens": len(output.prompt_token_ids), "completion_tokens": len(completion.token_ids),
                "cached_tokens": output.num_cached_tokens,
            },
        }

    def deltas(self, index: int, output: RequestOutput, completion: CompletionOutput) -> list[str]:
        text, ids = self._so_far.get(index, ("", []))
        text, ids = text + completion.text, ids + completion.token_ids
        self._so_far[index] = text, ids
        if not completion.text and completion.finish_reason is None:
            return []
        whole = CompletionOutput(completion.index, text, ids, None, None, completion.finish_reason,
                                 completion.stop_reason)
        return [dumps(self.choice(index, output, whole) | ({"index": index} if self._is_many else {}))]

    def whole(self, choices: list[dict[str, Any]]) -> dict[str, Any] | list[dict[str, Any]]:
        return choices if self._is_many else choices[0]

    def head(self) -> str:
        return ""

    def tail(self) -> str:
        return ""

    @property
    def _is_many(self) -> bool:
        value = self.request.prompt
        return self.request.n > 1 or (isinstance(value, list) and not isinstance(value[0], int))


def _reason(completion: CompletionOutput) -> dict[str, Any] | None:
    if completion.finish_reason is None:
        return None
    if completion.finish_reason == "length":
        return {"type": "length", "length": len(completion.token_ids)}
    return {"type": completion.finish_reason, "matched": completion.stop_reason}
