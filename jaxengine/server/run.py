"""`jaxengine serve`: from settings to a server that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
import time
from typing import Any

from jaxengine.config import EngineConfig
from jaxengine.engine.ledger import Key
from jaxengine.engine.load import LoadedModel, load_engine
from jaxengine.server.access_log import configure_logging
from jaxengine.server.context import ServerContext
from jaxengine.server.lifecycle import Server
from jaxengine.server.model_service import ModelService
from jaxengine.server.settings import ServerSettings

log = logging.getLogger(__name__)


def serve(
    model: str, settings: ServerSettings, options: dict[str, Any], *, chat_template: str | None = None,
    accept_terms: bool = False,
) -> None:
    """Listens at once and loads meanwhile. Returns when the server was told to end; raises what ended it else.

    Raises ValueError for an address that cannot be listened on.
    """
    listener = _listen(settings)
    configure_logging(settings.log_format, settings.log_level)
    ctx = ServerContext(settings, settings.served_model_name or (model,))
    server = Server(ctx)

    def load() -> ModelService:
        start = time.monotonic()
        log.info(f"listening on {_address(settings, server.bound_port)}, loading {model}")
        config = EngineConfig.from_options(**options)
        loaded = load_engine(
            model, config, chat_template=chat_template, accept_terms=accept_terms,
            progress=sys.stderr.isatty(),      # elsewhere it would stand between the log's lines
        )
        _wait_for_first_steps(loaded)
        service = ModelService.start(loaded)
        gc.collect()
        gc.freeze()      # what is loaded stays: a full collection over it would stop a step for some 75 ms
        log.info(f"ready after {time.monotonic() - start:.1f} s: chat at {_address(settings, server.bound_port)}/")
        return service

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_main(server, listener, load))
    if server.failure is not None:
        raise server.failure
    log.info("stopped")
    if ctx.service is None or ctx.service.engine.engine.ledger.num_pending:
        sys.stderr.flush()
        os._exit(0)      # a thread that loads or compiles cannot be stopped otherwise
    ctx.service.engine.close()


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {_address(settings, settings.port)}: {error.strerror}; choose another --host or --port "
            "(0 takes a free one)"
        ) from None


async def _main(server: Server, listener: socket.socket, load: Any) -> None:
    async def load_once_listening() -> None:
        while not server.started:
            await asyncio.sleep(0.01)
        server.load_in_background(load)

    loading = asyncio.ensure_future(load_once_listening())
    try:
        await server.serve([listener])
    finally:
        loading.cancel()


def _wait_for_first_steps(loaded: LoadedModel) -> None:
    """What the first answer needs is compiled before the server calls itself ready."""
    runner = loaded.engine.runner
    keys = [Key("mixed", runner.buckets.mixed[0]), Key("decode", runner.buckets.decode[0]),
            Key("greedy", runner.buckets.greedy[0]), Key("sample", runner.buckets.sample[0])]
    waiting = [key for key in keys if not runner.ledger.is_ready(key)]
    if waiting:
        log.info(f"compiling {', '.join(map(str, waiting))}")
    for key in keys:
        runner.ledger.get(key)


def _address(settings: ServerSettings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{port}"
