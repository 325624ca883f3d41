"""The engine for servers: one thread steps it, any number of coroutines stream from it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxengine.config import EngineConfig
from jaxengine.engine.engine import Engine
from jaxengine.engine.load import load_engine
from jaxengine.engine.output import OutputKind
from jaxengine.structured import CompiledGrammar
from jaxengine.types import Request, RequestOutput, SamplingParams

log = logging.getLogger(__name__)

_LATE_CHECK = 0.25      # seconds between looks for requests that have waited too long


class EngineDeadError(RuntimeError):
    """The step loop has failed or was closed; no request can be served."""


class QueueTimeoutError(RuntimeError):
    """The request waited longer for its first step than it may."""


@dataclass(frozen=True)
class Job:
    """One prompt to run. Jobs that are submitted together share an `OutputStream`."""

    prompt_token_ids: list[int]
    params: SamplingParams
    prompt: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    grammar: CompiledGrammar | None = None      # of params.structured_outputs, from `Engine.compile_grammar`


Item = tuple[int, RequestOutput] | BaseException      # the index of its job, and what it did


class OutputStream:
    """What jobs submitted together produce, in the event loop that submitted them.

        async for batch in stream:            # at most one batch a step
            for index, output in batch: ...

    Iteration ends when every job has; it raises what ended a job early. `close` aborts what still runs.
    """

    def __init__(self, engine: AsyncEngine, request_ids: list[str], max_wait: float | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.request_ids = request_ids
        self.latest_start = None if max_wait is None else time.monotonic() + max_wait
        self._engine = engine
        self._open = len(request_ids)
        self._items: list[Item] = []
        self._reader: asyncio.Future[None] | None = None

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> list[tuple[int, RequestOutput]]:
        if not self._items:
            if self._open == 0:
                raise StopAsyncIteration
            self._reader = self.loop.create_future()
            await self._reader
        items, self._items = self._items, []
        batch = []
        for at, item in enumerate(items):
            if isinstance(item, BaseException):
                if batch:      # what came before it is told first
                    self._items = items[at:] + self._items
                    return batch
                self.close()
                raise item
            self._open -= item[1].finished
            batch.append(item)
        return batch

    def close(self) -> None:
        if self._open:
            self._open = 0
            self._engine.abort(self)

    def put(self, item: Item) -> None:
        """In the event loop alone."""
        self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class AsyncEngine:
    """Owns the engine's thread. One hop in (a command queue), one hop out (one callback a step and loop).

    An exception in a step fails every open request and ends the engine: its device state may be half
    written, so it goes on to refuse work (`is_healthy` is False) until the process is started again.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.error: BaseException | None = None
        self.on_death: Callable[[], None] | None = None      # called after a failed step, on the engine's thread
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, tuple[OutputStream, int]] = {}
        self._closed = False
        self._door = threading.Lock()      # no command enters after the last one was answered
        self._num_entering = 0             # requests in the command queue
        self._ids = itertools.count()
        self._progress = time.monotonic()
        self._next_late_check = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_model(cls, model: str, *, chat_template: str | None = None, accept_terms: bool = False,
                   progress: bool = True, **options: Any) -> AsyncEngine:
        """Loads a model as `LLM` does."""
        config = EngineConfig.from_options(**options)
        loaded = load_engine(model, config, chat_template=chat_template, accept_terms=accept_terms, progress=progress)
        return cls(loaded.engine)

    @property
    def is_healthy(self) -> bool:
        return not self._closed

    @property
    def num_waiting(self) -> int:
        """Requests that no step has begun, those included that the engine's thread has not seen yet."""
        return self.engine.scheduler.num_waiting + self._num_entering

    @property
    def num_unfinished(self) -> int:
        return len(self._streams) + self._num_entering

    def seconds_without_progress(self) -> float:
        """How long ago the last step ended, while there is work; 0 where there is none."""
        return time.monotonic() - self._progress if self.num_unfinished else 0.0

    def check(self, job: Job) -> None:
        """Raises ValueError for a job that can never be served. Any thread may ask."""
        self.engine.check_request(
            Request("", job.prompt_token_ids, job.params, job.prompt, job.priority, job.cache_salt)
        )

    def submit(
        self, jobs: Sequence[Job], output_kind: OutputKind = "delta", max_wait: float | None = None,
        arrival_time: float | None = None,
    ) -> OutputStream:
        """Queues jobs from a running event loop. max_wait: seconds until a job's first step at the latest.
        arrival_time: when they came in, on time.monotonic's clock (default: now).

        Raises EngineDeadError. A job that cannot be served, or waits too long, raises from the stream.
        """
        ids = [f"async-{next(self._ids)}" for _ in jobs]
        stream = OutputStream(self, ids, max_wait)

        def add() -> None:
            for at, (request_id, job) in enumerate(zip(ids, jobs, strict=True)):
                self._streams[request_id] = stream, at
                self.engine.add_request(
                    job.prompt_token_ids, job.params, request_id=request_id, prompt=job.prompt,
                    priority=job.priority, cache_salt=job.cache_salt, output_kind=output_kind, grammar=job.grammar,
                    arrival_time=arrival_time,
                )

        self._submit(add, stream)
        return stream

    async def generate(
        self, prompt_token_ids: list[int], params: SamplingParams | None = None, *, prompt: str | None = None,
        priority: int = 0, cache_salt: str | None = None, output_kind: OutputKind = "delta",
    ) -> AsyncIterator[RequestOutput]:
        """Streams one request's outputs. Leaving the iteration, or cancelling it, aborts the request.

        Raises ValueError for a request that cannot be served, EngineDeadError when the step loop has failed.
        """
        params = params or SamplingParams()
        compiling = self.engine.compile_grammar(params)
        grammar = None if compiling is None else await asyncio.wrap_future(compiling)
        job = Job(prompt_token_ids, params, prompt, priority, cache_salt, grammar)
        stream = self.submit([job], output_kind)
        try:
            async for batch in stream:
                for _, output in batch:
                    yield output
        finally:
            stream.close()

    def abort(self, stream: OutputStream) -> None:
        """Ends what a stream still waits for; its iteration gets no more."""
        self._commands.put(lambda: self._abort(stream))

    def stop(self) -> None:
        """Ends what runs and stops the thread. The engine itself is left usable."""
        self._commands.put(None)
        self._thread.join()
        for request_id in list(self.engine.requests):
            self.engine.abort(request_id)

    def close(self) -> None:
        """Stops, and frees the device memory."""
        self.stop()
        self.engine.runner.close()

    def _submit(self, command: Callable[[], None], stream: OutputStream) -> None:
        count = len(stream.request_ids)

        def run() -> None:
            try:
                command()
            except ValueError as error:      # this submission's own fault: tell it alone
                self._abort(stream)
                self._deliver([(stream, error)])
            finally:
                with self._door:
                    self._num_entering -= count

        with self._door:
            if self._closed:
                raise EngineDeadError(f"the engine has stopped: {self.error or 'it was closed'}")
            if self.num_unfinished == 0:
                self._progress = time.monotonic()
            self._num_entering += count
            self._commands.put(run)

    def _abort(self, stream: OutputStream) -> None:
        for request_id in stream.request_ids:
            if self._streams.pop(request_id, None) is not None:
                self.engine.abort(request_id)

    def _run(self) -> None:
        try:
            while self._obey():
                self._hand_out(self.engine.step())
                self._progress = time.monotonic()
                if self._progress >= self._next_late_check:
                    self._next_late_check = self._progress + _LATE_CHECK
                    self._end_late(self._progress)
        except Exception as error:
            log.exception("the step loop failed")
            self.error = error
            self._fail_all(EngineDeadError(f"the engine's step failed: {error!r}"))
        else:
            self._fail_all(EngineDeadError("the engine was closed"))

    def _obey(self) -> bool:
        """Runs the commands that wait, sleeping while there is nothing to do; False when told to stop."""
        while True:
            try:
                command = self._commands.get(block=not self.engine.has_unfinished)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _hand_out(self, outputs: list[RequestOutput]) -> None:
        items: list[tuple[OutputStream, Item]] = []
        for output in outputs:
            owner = self._streams.get(output.request_id)
            if owner is not None:
                items.append((owner[0], (owner[1], output)))
                if output.finished:
                    del self._streams[output.request_id]
        self._deliver(items)

    def _end_late(self, now: float) -> None:
        """Aborts requests whose first step is overdue."""
        for seq in self.engine.scheduler.waiting:
            owner = self._streams.get(seq.request.request_id)
            if owner is None or seq.first_scheduled_time is not None:
                continue
            stream = owner[0]
            if stream.latest_start is not None and now > stream.latest_start:
                self._abort(stream)
                self._deliver([(stream, QueueTimeoutError("the request waited too long for its turn"))])

    def _fail_all(self, error: EngineDeadError) -> None:
        with self._door:
            self._closed = True
        while not self._commands.empty():      # requests that came in too late fail with the rest
            if (command := self._commands.get_nowait()) is not None:
                command()
        streams = {id(stream): stream for stream, _ in self._streams.values()}
        self._streams = {}
        self._deliver([(stream, error) for stream in streams.values()])
        if self.on_death is not None and self.error is not None:
            self.on_death()

    def _deliver(self, items: list[tuple[OutputStream, Item]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[OutputStream, Item]]] = {}
        for stream, item in items:
            by_loop.setdefault(stream.loop, []).append((stream, item))
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, batch)
            except RuntimeError:      # the loop was closed; nobody listens any more
                log.debug("an event loop closed with %d requests unread", len(batch))


def _put_all(batch: list[tuple[OutputStream, Item]]) -> None:
    for stream, item in batch:
        stream.put(item)
