"""What a completion and a chat have in common: one answer in one piece, or the same answer in events."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing
from json.encoder import encode_basestring as quoted  # C code: a third of the time of json.dumps
from typing import Any, ClassVar

from jaxengine.engine.async_engine import Job
from jaxengine.server.context import ServerContext
from jaxengine.server.generation import running
from jaxengine.server.model_service import ModelService
from jaxengine.server.protocol.sampling import SamplingFields
from jaxengine.server.usage import Usage
from jaxengine.types import CompletionOutput, RequestOutput

__all__ = ["Call", "dumps", "quoted"]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class Call(ABC):
    """A request that was found good, with its jobs. Choice `index` is prompt * n + sequence.

    Each event is one JSON text, as SSE and the WebSocket send it; events of one step come as one list.
    """

    object_name: ClassVar[str]
    chunk_name: ClassVar[str]
    id_prefix: ClassVar[str]

    def __init__(
        self, ctx: ServerContext, service: ModelService, request: SamplingFields, jobs: list[Job],
        timeout: float | None,
    ) -> None:
        self.ctx, self.service, self.request, self.jobs, self.timeout = ctx, service, request, jobs, timeout
        self.id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model = ctx.model_name(request.model)
        self.usage = Usage(
            sum(len(job.prompt_token_ids) for job in jobs), ctx.settings.enable_prompt_tokens_details
        )
        self.arrival_time = time.monotonic()
        self._ended: set[int] = set()

    @abstractmethod
    def choice(self, index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        """A whole choice of the answer in one piece."""

    @abstractmethod
    def deltas(self, index: int, output: RequestOutput, completion: CompletionOutput) -> list[str]:
        """What a step added to a choice, each as the JSON text of a chunk's choice."""

    async def response(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Runs the jobs to their end."""
        choices: dict[int, dict[str, Any]] = {}
        with running(self.ctx, self.jobs, "final_only", self.timeout, self.arrival_time) as batches:
            async for batch in batches:
                for at, output in batch:
                    self.usage.add(at, output)
                    for completion in output.outputs:
                        index = at * self.request.n + completion.index
                        choices[index] = self.choice(index, output, completion)
        return self.whole([choices[index] for index in sorted(choices)])

    def whole(self, choices: list[dict[str, Any]]) -> dict[str, Any] | list[dict[str, Any]]:
        """The answer in one piece around its choices."""
        return {
            "id": self.id, "object": self.object_name, "created": self.created, "model": self.model,
            "choices": choices, "usage": self.usage.body(),
        }

    def head(self) -> str:
        """How each event begins, before its choice."""
        return (f'{{"id":"{self.id}","object":"{self.chunk_name}","created":{self.created},'
                f'"model":{quoted(self.model)},"choices":[')

    def tail(self) -> str:
        """How an event ends, after its choice."""
        if self.request.continuous_usage:
            return f'],"usage":{self.usage.json()}}}'
        return '],"usage":null}' if self.request.include_usage else "]}"

    async def events(self) -> AsyncIterator[list[str]]:
        """Runs the jobs; yields the events of each step. The last event of usage included, [DONE] not."""
        head = self.head()
        with running(self.ctx, self.jobs, "delta", self.timeout, self.arrival_time) as batches:
            async with aclosing(batches) as steps:      # type: ignore[type-var]
                async for batch in steps:
                    choices = [text for at, output in batch for text in self._step(at, output)]
                    if choices:
                        tail = self.tail()
                        yield [f"{head}{text}{tail}" for text in choices]
        if self.request.include_usage:
            yield [f'{head}],"usage":{self.usage.json()}}}']

    def _step(self, at: int, output: RequestOutput) -> list[str]:
        self.usage.add(at, output)
        texts: list[str] = []
        for completion in output.outputs:
            index = at * self.request.n + completion.index
            if index not in self._ended:      # one that ended in an earlier step comes again, empty
                texts += self.deltas(index, output, completion)
                if completion.finish_reason is not None:
                    self._ended.add(index)
        return texts
