"""Copies between the TPU's memories."""

from typing import Any

from jax.experimental.pallas import tpu as pltpu


def do_copy(start: bool, source: Any, target: Any, semaphore: Any) -> None:
    """Starts a copy, or waits for the one that was started between the same places."""
    copy = pltpu.make_async_copy(source, target, semaphore)
    if start:
        copy.start()
    else:
        copy.wait()
