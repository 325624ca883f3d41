"""Telling a model's reasoning, between <think> and </think>, from its answer."""

from __future__ import annotations

from jaxengine.server.chat_stage import ChatDelta, ChatStage
from jaxengine.server.tool_calls.formats import is_special
from jaxengine.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"


def reasons(option: str, tokenizer: Tokenizer) -> bool:
    """Whether the model writes reasoning: as the flag says, or as its template shows."""
    return option == "think" or (option == "auto" and CLOSE in (tokenizer.chat_template or ""))


def has_special_marks(tokenizer: Tokenizer) -> bool:
    """Whether the marks are special tokens, which must stay in the text to be seen."""
    return is_special(tokenizer, OPEN) or is_special(tokenizer, CLOSE)


def prompt_opens(prompt: str | None) -> bool:
    """Whether the template itself has begun the reasoning, so that the output starts within it."""
    return prompt is not None and prompt.rstrip().endswith(OPEN)


class ReasoningStage:
    """A ChatStage that keeps the reasoning and hands the rest to another stage.

    White space around the marks belongs to neither. A model that never begins to reason only answers.
    """

    def __init__(self, inner: ChatStage, begun: bool) -> None:
        self._inner = inner
        self._state = "inside" if begun else "before"
        self._text = ""               # not told yet
        self._has_said = False        # whether this part, reasoning or answer, has begun with text

    def finish_reason(self, reason: str) -> str:
        return self._inner.finish_reason(reason)

    def push(self, text: str, finished: bool) -> ChatDelta:
        self._text += text
        reasoning = ""
        if self._state == "before":
            self._begin(finished)
        if self._state == "inside":
            reasoning = self._reason(finished)
        if self._state == "before" or self._state == "inside":
            answer = ""
        else:
            answer, self._text = self._text if self._has_said else self._text.lstrip("\n"), ""
            self._has_said = self._has_said or bool(answer)
        delta = self._inner.push(answer, finished)
        delta.reasoning_content = reasoning
        return delta

    def _begin(self, finished: bool) -> None:
        start = self._text.lstrip()
        if start.startswith(OPEN):
            self._text, self._state = start[len(OPEN):], "inside"
        elif finished or not OPEN.startswith(start):
            self._state, self._has_said = "after", True      # an answer as it is, its first spaces included

    def _reason(self, finished: bool) -> str:
        text = self._text if self._has_said else self._text.lstrip("\n")
        at = text.find(CLOSE)
        if at >= 0:
            said, self._text = text[:at].rstrip("\n"), text[at + len(CLOSE):]
            self._state, self._has_said = "after", False
            return said
        end = len(text) if finished else len(text[: len(text) - _held(text)].rstrip("\n"))
        self._text, said = text[end:], text[:end]
        self._has_said = self._has_said or bool(said)
        return said


def _held(text: str) -> int:
    """How many of the text's last characters might begin the closing mark."""
    for length in range(min(len(CLOSE) - 1, len(text)), 0, -1):
        if CLOSE.startswith(text[-length:]):
            return length
    return 0
