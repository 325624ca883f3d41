"""What a chat's answer is made of: free text or a form, tool calls, reasoning."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.server.chat_stage import ChatStage, PlainStage
from jaxengine.server.errors import bad_request
from jaxengine.server.model_service import ModelService
from jaxengine.server.protocol.requests import ChatRequest
from jaxengine.server.reasoning import ReasoningStage, has_special_marks, prompt_opens, reasons
from jaxengine.server.settings import ServerSettings
from jaxengine.server.tool_calls.choice import Tools, read_tools
from jaxengine.structured_outputs import StructuredOutputs
from jaxengine.types import SamplingParams


@dataclass(frozen=True)
class AnswerShape:
    """param: the field that asks for `outputs`. marks: special tokens tell calls or reasoning, so text keeps them."""

    tools: Tools | None
    outputs: StructuredOutputs | None
    param: str | None
    reasons: bool
    marks: bool

    def applied(self, params: SamplingParams) -> SamplingParams:
        params = params.replace(structured_outputs=self.outputs)
        return params.replace(skip_special_tokens=False) if self.marks else params

    def stage(self, prompt: str | None) -> ChatStage:
        """For one choice. prompt: as the template wrote it."""
        stage: ChatStage = PlainStage() if self.tools is None else self.tools.stage()
        return ReasoningStage(stage, prompt_opens(prompt)) if self.reasons else stage


def read_shape(settings: ServerSettings, service: ModelService, request: ChatRequest) -> AnswerShape:
    """Raises ApiError 400. Slow where schemas are large: for a thread."""
    form = request.form()
    tools = read_tools(
        request.tools, request.tool_choice, request.parallel_tool_calls, service, settings.tool_call_parser
    )
    if form is not None and tools is not None:
        raise bad_request(f"{form[1]} holds the whole answer, so no tool could be called; set tool_choice='none' or "
                          f"leave {form[1]} out", form[1])
    outputs, param = form or (None, None)
    if tools is not None and tools.grammar is not None:
        outputs, param = tools.grammar, "tools"
    # A form holds from the first token on: there is no reasoning before it.
    thinks = outputs is None and reasons(settings.reasoning_parser, service.tokenizer)
    marks = (tools is not None and tools.special_marks) or (thinks and has_special_marks(service.tokenizer))
    return AnswerShape(tools, outputs, param, thinks, marks)
