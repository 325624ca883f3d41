"""Chat templates: a conversation becomes a prompt's text, in jinja2's sandbox.

A template comes with a checkpoint, so it is not trusted: it sees the values it is given and nothing else, cannot
change them, and its ranges, repetitions and output are bounded. What remains: nested loops may run for a long
time, and strings may be doubled or padded until memory ends. Whoever lets strangers choose templates has to
render them in a process with limits of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from jaxengine.tokenizer.chat_messages import check_messages, check_tools
from jaxengine.tokenizer.source import DEFAULT_TEMPLATE
from jaxengine.tokenizer.template_sandbox import TemplateSandbox

MAX_PROMPT_CHARS = 1 << 25
_TOOL_TEMPLATE = "tool_use"
# The space at its end shows whether the template trims what it writes.
_OPEN_END = "<<<the final message ends here>>> "
_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
# What a template that meets values it did not expect may raise.
_RENDER_ERRORS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)


class ChatTemplate:
    """A checkpoint's template or templates; "tool_use", where there is one, serves requests with tools."""

    def __init__(self, templates: Mapping[str, str], named_tokens: Mapping[str, str]) -> None:
        """templates: texts by name. named_tokens: "bos_token" and the like, which templates may use.

        Raises ValueError where a template does not parse.
        """
        sandbox = TemplateSandbox()
        self._texts = dict(templates)
        self._named_tokens = dict(named_tokens)
        try:
            self._compiled = {name: sandbox.from_string(text) for name, text in templates.items()}
        except TemplateSyntaxError as error:
            raise ValueError(f"the chat template does not parse: line {error.lineno}: {error.message}") from error

    @property
    def text(self) -> str | None:
        return self._texts.get(DEFAULT_TEMPLATE)

    @property
    def tool_text(self) -> str | None:
        return self._texts.get(_TOOL_TEMPLATE, self.text)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """See Tokenizer.apply_chat_template."""
        if add_generation_prompt and continue_final_message:
            raise ValueError("continue_final_message=True needs add_generation_prompt=False: one turn is open, not two")
        reserved = [name for name in variables if name in _RESERVED or name in self._named_tokens]
        if reserved:
            raise ValueError(f"chat template variables must not be named {', '.join(map(repr, reserved))}")
        checked = check_messages(messages)
        if continue_final_message:
            checked[-1]["content"] += _OPEN_END
        text = self._run(
            self._choose(tools),
            {
                **self._named_tokens,
                **variables,
                "messages": checked,
                "tools": check_tools(tools),
                "add_generation_prompt": add_generation_prompt,
            },
        )
        return _cut_open(text) if continue_final_message else text

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        if tools and _TOOL_TEMPLATE in self._compiled:
            return _TOOL_TEMPLATE
        if DEFAULT_TEMPLATE not in self._compiled:
            raise ValueError(
                f"the model's chat templates are named {', '.join(self._compiled)}, none of them "
                f"{DEFAULT_TEMPLATE!r}; give one with --chat-template"
            )
        return DEFAULT_TEMPLATE

    def _run(self, name: str, values: Mapping[str, Any]) -> str:
        pieces, length = [], 0
        try:
            for piece in self._compiled[name].generate(values):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_PROMPT_CHARS:
                    raise TemplateError(f"the prompt grows beyond {MAX_PROMPT_CHARS} characters")
        except _RENDER_ERRORS as error:
            raise ValueError(f"the chat template refuses this conversation: {error}") from error
        return "".join(pieces)


def _cut_open(text: str) -> str:
    """The prompt up to the end of the final message's own text, trimmed where the template trims."""
    end = text.rfind(_OPEN_END.rstrip())
    if end < 0:
        raise ValueError("continue_final_message: the chat template does not write the final message as it is")
    return text[:end] if text.startswith(_OPEN_END, end) else text[:end].rstrip()
