"""One case on the chip itself, against float64. Needs neither pytest nor anything but jax and numpy."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from attention_oracle import attend
from pool_contents import contents

from pallas_kernels.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.ragged_paged_attention.cases import Case, build

# Largest difference from float64 on normal data, by the queries' dtype.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}
POISON_BYTES = 1 << 26


def poison() -> None:
    """Leaves NaNs in freed memory, where outputs will lie: a row that a kernel forgets shows."""
    for size in (POISON_BYTES, POISON_BYTES // 16, 1 << 16):
        jnp.full((size // 4,), jnp.nan, jnp.float32).block_until_ready().delete()


def largest_error(case: Case, seed: int, backend: str) -> float:
    """Between the op on random inputs and float64 over what its pool holds; infinite where padding is not finite."""
    inputs = build(case, seed, backend)
    op: Any = jax.jit(functools.partial(ragged_paged_attention, backend=backend, **inputs.options))
    poison()
    out, kv = op(*inputs[:5])
    out = np.asarray(out.astype(jnp.float32))
    if not np.isfinite(out).all():
        return float("inf")
    place = inputs.metadata.block_tables, inputs.metadata.kv_lens, case, backend
    keys, values = contents(kv.k, kv.k_scale, *place), contents(kv.v, kv.v_scale, *place)
    cu = np.asarray(inputs.metadata.cu_q_lens)
    return float(np.abs(out[: cu[-1]] - attend(inputs.q, cu, keys, values, **inputs.options)).max())


def tolerance(case: Case) -> float:
    return TOLERANCE[jnp.dtype(case.dtype).name]
