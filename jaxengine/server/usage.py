"""Counting tokens for `usage`: each prompt once, every sampled token of every choice."""

from __future__ import annotations

import json
from typing import Any

from jaxengine.types import RequestOutput


class Usage:
    """The running count of one response."""

    def __init__(self, prompt_tokens: int, with_details: bool) -> None:
        self.prompt_tokens, self.completion_tokens = prompt_tokens, 0
        self._with_details = with_details
        self.last: dict[int, RequestOutput] = {}      # of each prompt

    def add(self, index: int, output: RequestOutput) -> None:
        self.completion_tokens += sum(len(choice.token_ids) for choice in output.outputs)
        self.last[index] = output

    @property
    def cached_tokens(self) -> int:
        return sum(output.num_cached_tokens for output in self.last.values())

    def body(self) -> dict[str, Any]:
        prompt, completion = self.prompt_tokens, self.completion_tokens
        body: dict[str, Any] = {
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        }
        if self._with_details:
            body["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return body

    def json(self) -> str:
        return json.dumps(self.body())
