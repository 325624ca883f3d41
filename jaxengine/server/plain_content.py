"""Special tokens that a user types, taken as the letters they are written with.

A tokenizer turns the spelling of a special token into that token, so a user can end their own turn and open
the assistant's. With --plain-user-content a mark that no text has is put into each such spelling before the
template is rendered, and the prompt is tokenised in the pieces between the marks.
"""

from __future__ import annotations

from typing import Any

from jaxengine.tokenizer import Tokenizer

MARK = "\ufdd0"      # one of Unicode's noncharacters: never part of a text that is exchanged
ROLES = ("user", "tool")


def mark_specials(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Copies of the messages with marks in what users and tools say."""
    spellings = sorted((tokenizer.token_text(i) for i in tokenizer.special_token_ids), key=len, reverse=True)
    spellings = [text for text in spellings if len(text) > 1]
    return [
        message | {"content": _marked(message.get("content"), spellings)} if message["role"] in ROLES else message
        for message in messages
    ]


def encode_marked(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    first, *others = text.split(MARK)
    ids = tokenizer.encode(first, add_special_tokens)
    for piece in others:
        ids += tokenizer.encode(piece, add_special_tokens=False)
    return ids


def _marked(content: Any, spellings: list[str]) -> Any:
    if isinstance(content, list):
        return [part | {"text": _marked(part["text"], spellings)} if isinstance(part, dict) else
                _marked(part, spellings) for part in content]
    if not isinstance(content, str):
        return content
    content = content.replace(MARK, "")
    for spelling in spellings:
        content = content.replace(spelling, spelling[0] + MARK + spelling[1:])
    return content
