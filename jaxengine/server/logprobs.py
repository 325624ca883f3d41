"""Log-probabilities in the two shapes of OpenAI, and in vLLM's shape for prompts."""

from __future__ import annotations

import codecs
from typing import Any

from jaxengine.tokenizer import Tokenizer
from jaxengine.types import Logprob

FLOOR = -9999.0      # stands for minus infinity, which JSON cannot say

Entry = dict[int, Logprob]      # the token itself first, then the likeliest ones


def number(logprob: float) -> float:
    return max(logprob, FLOOR)


class LegacyLogprobs:
    """The arrays of /v1/completions for one choice, piece by piece; `text_offset` runs on.

    top_logprobs has the `count` likeliest tokens and always the token itself. A token that is not UTF-8 by
    itself is written as bytes:\\xNN, as OpenAI did, so that different tokens keep different keys.
    """

    def __init__(self, tokenizer: Tokenizer, count: int, as_ids: bool) -> None:
        self._tokenizer, self._count, self._as_ids = tokenizer, count, as_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def arrays(self, token_ids: list[int], entries: list[Entry | None]) -> dict[str, list[Any]]:
        """None as an entry: nothing comes before this token, so it has no log-probability."""
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, entry in zip(token_ids, entries, strict=True):
            result["tokens"].append(self._name(token_id))
            result["text_offset"].append(self._offset)
            result["token_logprobs"].append(None if entry is None else number(entry[token_id].logprob))
            result["top_logprobs"].append(None if entry is None else self._top(token_id, entry))
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return result

    def _top(self, token_id: int, entry: Entry) -> dict[str, float]:
        top: dict[str, float] = {}
        for other, logprob in sorted(entry.items(), key=lambda item: item[1].rank):
            if other == token_id or logprob.rank <= self._count:
                top.setdefault(self._name(other), number(logprob.logprob))
        return top

    def _name(self, token_id: int) -> str:
        return token_name(self._tokenizer, token_id, self._as_ids)


def token_name(tokenizer: Tokenizer, token_id: int, as_ids: bool) -> str:
    if as_ids:
        return f"token_id:{token_id}"
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(
    tokenizer: Tokenizer, token_ids: list[int], entries: list[Entry], count: int, as_ids: bool
) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat choice."""

    def told(token_id: int, logprob: Logprob) -> dict[str, Any]:
        name = f"token_id:{token_id}" if as_ids else tokenizer.token_text(token_id)
        return {"token": name, "logprob": number(logprob.logprob), "bytes": list(tokenizer.token_bytes(token_id))}

    content = []
    for token_id, entry in zip(token_ids, entries, strict=True):
        ranked = sorted(entry.items(), key=lambda item: item[1].rank)
        top = [told(other, logprob) for other, logprob in ranked if logprob.rank <= count]
        content.append(told(token_id, entry[token_id]) | {"top_logprobs": top[:count]})
    return content


def prompt_logprobs(entries: list[Entry | None], count: int) -> list[dict[str, Any] | None]:
    """vLLM's shape: per prompt token, id -> logprob, rank and text; null for the first."""
    return [
        None if entry is None else {
            str(token_id): {"logprob": number(p.logprob), "rank": p.rank, "decoded_token": p.decoded_token}
            for at, (token_id, p) in enumerate(entry.items()) if at == 0 or p.rank <= count
        }
        for entry in entries
    ]
