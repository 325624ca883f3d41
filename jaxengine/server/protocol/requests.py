"""The bodies of /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from jaxengine.server.errors import bad_request, shown
from jaxengine.server.protocol.model import StrictModel
from jaxengine.server.protocol.sampling import Count, Role, SamplingFields
from jaxengine.server.protocol.structured import RESPONSE_FORMAT_SCHEMA, STRUCTURED_OUTPUTS_SCHEMA, read_form
from jaxengine.server.protocol.tools import CHOICE_SCHEMA, TOOLS_SCHEMA
from jaxengine.structured_outputs import StructuredOutputs

PROMPT_SCHEMA = {
    "description": "A text, a list of texts, a list of token ids, or a list of lists of token ids.",
    "oneOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
         "minItems": 1},
    ],
}
Prompt = Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]      # read by server.prompts, which knows the limits

KWARGS_SCHEMA = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}
ChatTemplateKwargs = Annotated[dict[str, Any], WithJsonSchema(KWARGS_SCHEMA)]


# What a template is given by other means. A checkpoint's further named tokens are refused when it is rendered.
TEMPLATE_NAMES = frozenset((
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
    "bos_token", "eos_token", "pad_token", "unk_token",
))


class FormFields(SamplingFields):
    """What form the output must have, for completions and chat alike."""

    response_format: Annotated[Any, WithJsonSchema(RESPONSE_FORMAT_SCHEMA)] = None
    structured_outputs: Annotated[Any, WithJsonSchema(STRUCTURED_OUTPUTS_SCHEMA)] = None

    def form(self) -> tuple[StructuredOutputs, str] | None:
        """The form and the field that asks for it. Raises ApiError 400."""
        return read_form(self.response_format, self.structured_outputs)


class CompletionRequest(FormFields):
    prompt: Prompt
    max_tokens: Count | None = Field(None, description="16 where it is absent; 0 only with echo.")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool = False
    add_special_tokens: bool = True

    refused: ClassVar[dict[str, str]] = SamplingFields.refused | {
        "suffix": "", "top_logprobs": "use logprobs",
    }
    harmless: ClassVar[dict[str, tuple[Any, ...]]] = SamplingFields.harmless | {"suffix": ("",)}


CONTENT_SCHEMA = {
    "description": "A text, or a list of text parts, which are joined with line ends.",
    "anyOf": [
        {"type": "string"}, {"type": "null"},
        {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, {
            "type": "object", "required": ["type", "text"],
            "properties": {"type": {"type": "string", "const": "text"}, "text": {"type": "string"}},
        }]}},
    ],
}


class Message(StrictModel):
    """One message. A template may read further fields, so they are kept."""

    model_config = ConfigDict(strict=True, extra="allow", json_schema_extra={"anyOf": [
        {"required": ["content"], "properties": {"content": {"not": {"type": "null"}}}},
        {"required": ["tool_calls"], "properties": {
            "role": {"const": "assistant"}, "tool_calls": {"type": "array", "minItems": 1}}},
    ]})

    role: Role
    content: Annotated[Any, WithJsonSchema(CONTENT_SCHEMA)] = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    @field_validator("content")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            raise ValueError("must be a string or a list of text parts")
        for part in value:
            if isinstance(part, str):
                continue
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                raise ValueError(f"has a part of type {shown(kind)}; this model reads text alone, type 'text'")
            if not isinstance(part.get("text"), str):
                raise ValueError("has a text part whose text is not a string")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("must have content: a string or a list of text parts")
        return self


class ChatRequest(FormFields):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Count | None = Field(None, description="Superseded by max_completion_tokens.")
    max_completion_tokens: Count | None = Field(None, description="To the context's end where it is absent.")
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: ChatTemplateKwargs | None = None
    tools: Annotated[list[Any] | None, WithJsonSchema(TOOLS_SCHEMA)] = None
    tool_choice: Annotated[Any, WithJsonSchema(CHOICE_SCHEMA)] = None
    parallel_tool_calls: bool = Field(True, description="Whether calls that are forced may be several.")

    refused: ClassVar[dict[str, str]] = SamplingFields.refused | {
        "chat_template": "the server's template holds; see --chat-template", "documents": "", "functions": "use tools",
        "function_call": "use tool_choice", "modalities": "", "audio": "", "prediction": "", "web_search_options": "",
        "echo": "", "suffix": "", "reasoning_effort": "",
    }
    harmless: ClassVar[dict[str, tuple[Any, ...]]] = SamplingFields.harmless | {
        "modalities": (["text"],), "echo": (False,), "suffix": ("",), "documents": ([],),
    }

    @field_validator("chat_template_kwargs")
    @classmethod
    def _plain_values(cls, value: Any) -> Any:
        reserved = sorted(value.keys() & TEMPLATE_NAMES) if value else []
        if reserved:
            raise ValueError(f"must not set {shown(reserved[0])}, which the server sets")
        if value and any(isinstance(item, (dict, list)) for item in value.values()):
            raise ValueError("may hold texts, numbers and booleans alone")
        return value

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise bad_request(f"top_logprobs={self.top_logprobs} needs logprobs=true", "top_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            raise bad_request("continue_final_message=true needs add_generation_prompt=false: one turn is open, not "
                              "two", "continue_final_message")
        return self

    @property
    def opens_turn(self) -> bool:
        """Whether the assistant's turn is opened after the last message."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt
