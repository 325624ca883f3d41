"""What becomes of a choice's text on its way into a chat message.

A stage sees the text of one choice, whole or in pieces however cut, and says which part is content, which is
reasoning and which are tool calls. The same text gives the same message, in one piece or in many.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(slots=True)
class ChatDelta:
    """What a piece of text adds to the message. Tool calls are in the shape of a chunk's delta."""

    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning_content or self.tool_calls)


class ChatStage(Protocol):
    def push(self, text: str, finished: bool) -> ChatDelta:
        """The next piece of text; the last one has finished=True and releases what was held back."""
        ...

    def finish_reason(self, reason: str) -> str:
        """What the chat calls the end that the engine calls `reason`."""
        ...


class PlainStage:
    """All text is content."""

    def push(self, text: str, finished: bool) -> ChatDelta:
        return ChatDelta(text)

    def finish_reason(self, reason: str) -> str:
        return reason
