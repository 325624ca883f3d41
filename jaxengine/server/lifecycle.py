"""Starting and ending: listening before the model is there, draining on the first signal, leaving on the second."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from jaxengine.server.app import create_app
from jaxengine.server.context import ServerContext
from jaxengine.server.generation import end_all
from jaxengine.server.http_protocol import limited_protocol
from jaxengine.server.model_service import ModelService

log = logging.getLogger(__name__)

_DONE_CHECK = 0.05       # seconds between looks whether all is drained
_GRACE = 2               # seconds for the last bytes and errors to leave


class Server(uvicorn.Server):
    """uvicorn's server around one context.

    `failure` says why it ended, where it did not end by a signal: the model did not load, or the engine died.
    """

    def __init__(self, ctx: ServerContext) -> None:
        settings = ctx.settings
        super().__init__(uvicorn.Config(
            create_app(ctx), host=settings.host, port=settings.port, http=limited_protocol(settings),
            ws="websockets-sansio", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, timeout_keep_alive=settings.keep_alive_timeout, timeout_graceful_shutdown=_GRACE,
            ws_max_size=settings.max_body_bytes, ws_per_message_deflate=False,
        ))
        self.ctx = ctx
        self.failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None

    async def serve(self, sockets=None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    @property
    def bound_port(self) -> int:
        """The port that is listened on, also where port 0 was asked for."""
        return self.servers[0].sockets[0].getsockname()[1]

    def load_in_background(self, load: Callable[[], ModelService]) -> None:
        """Runs `load` in a thread; the server is ready when it returns, and ends when it raises."""

        def work() -> None:
            try:
                service = load()
            except BaseException as error:      # told to whoever started the server, which ends now
                self._end_with(error)
                return
            service.engine.on_death = lambda: self._end_with(service.engine.error)
            self.ctx.open(service)

        threading.Thread(target=work, name="load", daemon=True).start()

    def drain(self) -> None:
        """Takes no more work, lets what runs end for `drain_timeout` seconds, then ends the server. Any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._start_draining)

    def _start_draining(self) -> None:
        if self._ending is None:
            self.ctx.draining = True
            self._ending = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        loop, settings = asyncio.get_running_loop(), self.ctx.settings
        if self.ctx.open_streams:
            log.info("waiting up to %g s for %d requests; a second signal ends at once", settings.drain_timeout,
                     len(self.ctx.open_streams))
        deadline = loop.time() + settings.drain_timeout
        while (self.ctx.open_streams or self.ctx.text.num_pending) and loop.time() < deadline:
            await asyncio.sleep(_DONE_CHECK)
        end_all(self.ctx)
        self.should_exit = True

    def _end_with(self, error: BaseException | None) -> None:
        self.failure = error
        if self._loop is not None:
            self._loop.call_soon_threadsafe(setattr, self, "should_exit", True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Instead of uvicorn's own, which raises the signal again at the end: a drained server exits with 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.ctx.draining:
            os._exit(128 + number)
        self.ctx.draining = True
        self.drain()
