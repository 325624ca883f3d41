"""A conversation with a model: its messages, kept within the model's context."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from jaxengine.cli import CommandError
from jaxengine.types import SamplingParams

if TYPE_CHECKING:
    from jaxengine.engine.llm import LLM

# Part of the context that the messages leave for an answer.
ANSWER_SHARE = 4


class Conversation:
    """Messages and answers in turn.

    When they no longer fit beside an answer, the oldest exchange is forgotten; the system message stays.
    notes: what the user should know about the latest answer.
    """

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None = None) -> None:
        self.llm, self.params = llm, params
        self.max_tokens = llm.engine.max_model_len
        self.notes: list[str] = []
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._turns: list[dict[str, str]] = []

    def reset(self) -> None:
        self._turns.clear()

    def say(self, text: str) -> Generator[str, None, None]:
        """Yields the answer in pieces. Closing the generator stops it; what was said stays remembered."""
        self.notes = []
        self._turns.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            self._make_room()
            for output in self.llm.stream_chat(self._system + self._turns, self.params, output_kind="delta"):
                if output.error is not None:
                    raise CommandError(output.error)
                completion = output.outputs[0]
                pieces.append(completion.text)
                if completion.finish_reason == "length":
                    self.notes.append(f"cut after {self.params.max_tokens} tokens; --max-tokens allows more")
                yield completion.text
        finally:
            if pieces:
                self._turns.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self._turns.pop()      # a message that got no answer is not part of the conversation

    def _make_room(self) -> None:
        """Forgets old exchanges. Raises ValueError when the latest message alone is too long."""
        reserve = min(self.params.max_tokens or self.max_tokens, self.max_tokens // ANSWER_SHARE)
        forgotten = 0
        while (length := self._length()) > self.max_tokens - reserve:
            if len(self._turns) == 1:
                raise ValueError(
                    f"the message has {length} tokens, and {self.max_tokens - reserve} of the context's "
                    f"{self.max_tokens} are for messages; shorten it or raise --max-model-len"
                )
            del self._turns[:2]
            forgotten += 1
        if forgotten:
            self.notes.append(f"the context was full: forgot the oldest messages ({forgotten} and their answers)")

    def _length(self) -> int:
        text = self.llm.tokenizer.apply_chat_template(self._system + self._turns, add_generation_prompt=True)
        return len(self.llm.tokenizer.encode(text, add_special_tokens=False))
