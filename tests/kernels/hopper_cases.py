"""The shared cases as the Hopper kernels can serve them."""

from collections.abc import Iterator
from dataclasses import replace

import jax.numpy as jnp

from pallas_kernels.need import Need
from pallas_kernels.ragged_paged_attention.cases import CASES, DECODE, MIXED, Case
from pallas_kernels.ragged_paged_attention.gpu_support import unsupported_shape

HEADS = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
# More work than blocks of threads, long sequences and many rows: what the chip can do and the interpreter cannot.
LARGE = (
    replace(DECODE, name="decode-many", seqs=tuple((1 + 61 * i, 1) for i in range(64)), max_blocks=300, **HEADS),
    replace(DECODE, name="decode-long", seqs=((9000, 1), (1, 1), (4097, 1)), max_blocks=600, **HEADS),
    replace(MIXED, name="mixed-long", seqs=((3000, 1), (17, 1), (2500, 300), (700, 700)), max_blocks=200, **HEADS),
)


def served(case: Case) -> Case:
    """With 16-bit queries."""
    return case if jnp.dtype(case.dtype).itemsize == 2 else replace(case, dtype=jnp.bfloat16)


def hopper_cases(cases: tuple[Case, ...] = CASES) -> Iterator[Case]:
    for case in map(served, cases):
        need = Need("gpu", case.head_dim, case.block_size, case.kv_dtype or case.dtype, case.dtype,
                    case.num_heads // case.num_kv_heads)
        if unsupported_shape(need) is None:
            yield case
