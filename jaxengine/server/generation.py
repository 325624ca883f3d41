"""Running a request's jobs: admission, deadlines, and the errors that end them, as the API tells them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

from starlette.types import Receive

from jaxengine.engine.async_engine import EngineDeadError, Job, OutputStream, QueueTimeoutError
from jaxengine.engine.collect import NOT_FINITE
from jaxengine.engine.output import OutputKind
from jaxengine.server.admission import check_admission
from jaxengine.server.context import ServerContext
from jaxengine.server.errors import ApiError, bad_request, failed, overloaded
from jaxengine.types import RequestOutput

Batch = list[tuple[int, RequestOutput]]


@contextmanager
def running(
    ctx: ServerContext, jobs: list[Job], kind: OutputKind, timeout: float | None = None,
    arrival_time: float | None = None,
) -> Iterator[AsyncIterator[Batch]]:
    """Submits jobs; what still runs when the block is left, for whatever reason, is aborted.

    timeout: seconds until the last token at the latest. arrival_time: see Engine.add_request. Raises ApiError, also
    from within the block.
    """
    service = ctx.serving()
    check_admission(ctx, service, [len(job.prompt_token_ids) for job in jobs])
    try:
        stream = service.engine.submit(jobs, kind, ctx.settings.max_queue_wait, arrival_time)
        limits = [t for t in (timeout, ctx.settings.request_timeout) if t is not None]
        timer = stream.loop.call_later(min(limits), stream.put, _too_slow(min(limits))) if limits else None
        ctx.open_streams.add(stream)
        try:
            yield _sound(stream)
        finally:
            stream.close()
            ctx.open_streams.discard(stream)
            if timer is not None:
                timer.cancel()
    except QueueTimeoutError:
        raise overloaded(f"the request waited {ctx.settings.max_queue_wait:g} s for its turn", 10) from None
    except EngineDeadError:
        raise failed("the engine failed while it worked on this request", "engine_error") from None
    except ValueError as error:      # what only the engine's thread could see
        raise bad_request(str(error)) from None


async def _sound(stream: OutputStream) -> AsyncIterator[Batch]:
    """The same batches; raises ApiError where one tells of an error, after what came before it."""
    async for batch in stream:
        error = next((output.error for _, output in batch if output.error is not None), None)
        if error is None:
            yield batch
            continue
        if before := list(takewhile(lambda entry: entry[1].error is None, batch)):
            yield before
        if error == NOT_FINITE:
            raise failed(f"the model could not go on: {error}", "model_error")
        raise bad_request(error)      # what the request itself asked for could not be followed to the end


def end_all(ctx: ServerContext) -> None:
    """The server's time to drain is over: what still runs ends with an error."""
    for stream in list(ctx.open_streams):
        stream.put(overloaded("the server is shutting down", 5, status=503))


def _too_slow(seconds: float) -> ApiError:
    return ApiError(
        408, f"the request was not done within its {seconds:g} s", code="deadline_exceeded",
        headers={"X-Should-Retry": "false"},
    )


async def until_done_or(watch: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None]) -> bool:
    """Runs `work`, and cancels it when `watch` ends first. Returns whether it came to its end."""
    watcher, worker = asyncio.ensure_future(watch), asyncio.ensure_future(work)
    try:
        await asyncio.wait({watcher, worker}, return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            return False
        worker.result()
        return True
    finally:
        watcher.cancel()
        worker.cancel()
        await asyncio.gather(watcher, worker, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
