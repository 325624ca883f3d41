"""Who may queue."""

from __future__ import annotations

import math

from jaxengine.server.context import ServerContext
from jaxengine.server.errors import overloaded
from jaxengine.server.model_service import ModelService


def admits(num_new: int, num_waiting: int, needed_blocks: int, free_blocks: int, max_queue_len: int) -> bool:
    """The policy. What fits into the pool at once while nobody waits is not queueing at all; all else has to
    find a place in the queue."""
    if num_waiting == 0 and needed_blocks <= free_blocks:
        return True
    return num_waiting + num_new <= max_queue_len


def check_admission(ctx: ServerContext, service: ModelService, prompt_lengths: list[int]) -> None:
    """Raises ApiError 429 with Retry-After where the queue is full."""
    engine = service.engine.engine
    needed = sum(engine.blocks.blocks_for(length) for length in prompt_lengths)
    num_waiting = service.engine.num_waiting
    limit = ctx.settings.max_queue_len
    if not admits(len(prompt_lengths), num_waiting, needed, engine.blocks.num_free, limit):
        # A guess that grows with the queue: that each batch of running sequences takes a second.
        wait = math.ceil(num_waiting / engine.config.scheduler.max_num_seqs)
        raise overloaded(f"{num_waiting} requests are waiting, and at most {limit} may; try again later", min(wait, 60))


def check_text_queue(ctx: ServerContext) -> None:
    """The same for requests that wait to be tokenised."""
    limit = ctx.settings.max_queue_len
    if ctx.text.num_pending >= limit:
        raise overloaded(f"{ctx.text.num_pending} requests are waiting to be tokenised, and at most {limit} may", 1)
