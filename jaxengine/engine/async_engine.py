"""The engine for servers: one thread steps it, any number of coroutines stream from it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from jaxengine.config import EngineConfig
from jaxengine.engine.engine import Engine
from jaxengine.engine.load import load_engine
from jaxengine.engine.output import OutputKind
from jaxengine.types import RequestOutput, SamplingParams

log = logging.getLogger(__name__)


class EngineDeadError(RuntimeError):
    """The step loop has failed or was closed; no request can be served."""


class _Stream:
    """One request's way back into its event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.items: asyncio.Queue[RequestOutput | BaseException] = asyncio.Queue()


class AsyncEngine:
    """Owns the engine's thread. One hop in (a command queue), one hop out (one callback a step and loop)."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.error: BaseException | None = None
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._closed = False
        self._door = threading.Lock()      # no command enters after the last one was answered
        self._ids = itertools.count()
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

    async def generate(
        self, prompt_token_ids: list[int], params: SamplingParams | None = None, *, request_id: str | None = None,
        prompt: str | None = None, priority: int = 0, cache_salt: str | None = None, output_kind: OutputKind = "delta",
    ) -> AsyncIterator[RequestOutput]:
        """Streams a request's outputs. Leaving the iteration, or cancelling it, aborts the request.

        Raises ValueError for a request that cannot be served, EngineDeadError when the step loop has failed.
        """
        stream = _Stream()
        request_id = request_id if request_id is not None else f"async-{next(self._ids)}"

        def add() -> None:
            self.engine.add_request(
                prompt_token_ids, params, request_id=request_id, prompt=prompt, priority=priority,
                cache_salt=cache_salt, output_kind=output_kind,
            )
            self._streams[request_id] = stream

        self._submit(add, stream)
        finished = False
        try:
            while not finished:
                item = await stream.items.get()
                if isinstance(item, BaseException):
                    finished = True
                    raise item
                finished = item.finished
                yield item
        finally:
            if not finished:
                self._commands.put(lambda: self._abort(request_id, stream))

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

    def _submit(self, command: Callable[[], None], stream: _Stream) -> None:
        def run() -> None:
            try:
                command()
            except ValueError as error:      # this request's own fault: tell it alone
                self._deliver([(stream, error)])

        with self._door:
            if self._closed:
                raise EngineDeadError(f"the engine has stopped: {self.error or 'it was closed'}")
            self._commands.put(run)

    def _abort(self, request_id: str, stream: _Stream) -> None:
        # The id may have ended by itself and be in use again: abort only what this stream asked for.
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self.engine.abort(request_id)

    def _run(self) -> None:
        try:
            while self._obey():
                outputs = self.engine.step()
                self._deliver([(self._streams[o.request_id], o) for o in outputs if o.request_id in self._streams])
                for output in outputs:
                    if output.finished:
                        self._streams.pop(output.request_id, None)
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

    def _fail_all(self, error: EngineDeadError) -> None:
        with self._door:
            self._closed = True
            while not self._commands.empty():      # requests that came in too late fail with the rest
                if (command := self._commands.get_nowait()) is not None:
                    command()
        streams, self._streams = self._streams, {}
        self._deliver([(stream, error) for stream in streams.values()])

    def _deliver(self, items: list[tuple[_Stream, RequestOutput | BaseException]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, RequestOutput | BaseException]]] = {}
        for stream, item in items:
            by_loop.setdefault(stream.loop, []).append((stream, item))
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, batch)
            except RuntimeError:      # the loop was closed; nobody listens any more
                log.debug("an event loop closed with %d requests unread", len(batch))


def _put_all(batch: list[tuple[_Stream, RequestOutput | BaseException]]) -> None:
    for stream, item in batch:
        stream.items.put_nowait(item)
