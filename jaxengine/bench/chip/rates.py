"""What the chip reaches with the simplest programs, and how to time others on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True)
class Rates:
    """copy: bytes a second of a copy within the device's memory, read and written. matmul: FLOPs a second, bfloat16."""

    copy: float
    matmul: float

    def floor(self, num_bytes: float, flops: float) -> float:
        """Seconds below which nothing that moves so many bytes and computes so much can come."""
        return max(num_bytes / self.copy, flops / self.matmul)


def measure_rates(tiny: bool = False) -> Rates:
    n, width = (1 << 16, 256) if tiny else (1 << 31, 8192)
    x = jnp.ones((n,), jnp.bfloat16)
    copied = seconds_of(jax.jit(lambda x: x + 1), x)
    del x
    a, b = jax.random.normal(jax.random.key(0), (2, width, width), jnp.bfloat16)
    multiplied = seconds_of(jax.jit(jnp.matmul), a, b)
    return Rates(2 * 2 * n / copied, 2 * width**3 / multiplied)


def seconds_of(f: Callable[..., Any], *args: Any, calls: int = 10, tries: int = 5) -> float:
    """The least mean over `calls` calls that are dispatched at once, of `tries` tries; the first is not counted."""
    jax.block_until_ready(f(*args))
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        for _ in range(calls):
            result = f(*args)
        jax.block_until_ready(result)
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def seconds_in_loop(step: Callable[[Any], Any], state: Any, calls: int, tries: int = 3) -> float:
    """Seconds of state = step(state), repeated on the device without the host between the calls.

    `state` is given away.
    """
    compiled = jax.jit(lambda state: lax.fori_loop(0, calls, lambda _, s: step(s), state), donate_argnums=0)
    state = jax.block_until_ready(compiled(state))
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        state = jax.block_until_ready(compiled(state))
        best = min(best, (time.perf_counter() - start) / calls)
    return best
