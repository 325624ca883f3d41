"""Named workloads, shared by the tests, the benchmark and a tuner.

A case says what a batch looks like; `build` makes its arrays. Everything that must not be read is poisoned:
the null block and every slot that holds no token are NaN.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.ragged_paged_attention.api import AttentionMetadata
from pallas_kernels.ragged_paged_attention.layout import kv_layer_spec, write
from pallas_kernels.ragged_paged_attention.pool import KVLayer


@dataclass(frozen=True)
class Case:
    """A batch for the op. `seqs` lists (kv_len, q_len) in tokens, decodes (q_len 1) first.

    kv_dtype None: a pool in the queries' dtype. max_q_len: given where the batch is uniform, as in a decode step.
    """

    name: str
    seqs: tuple[tuple[int, int], ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    max_blocks: int = 8                    # width of the block tables
    padding_seqs: int = 0
    padding_tokens: int = 0                # of a mixed batch
    dtype: Any = jnp.float32
    kv_dtype: Any = None
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    max_q_len: int | None = None


class Inputs(NamedTuple):
    """A case's arrays, and each sequence's whole keys and values [kv_len, K, H] as float32 for an oracle."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    kv: KVLayer
    metadata: AttentionMetadata
    options: dict[str, Any]
    keys: list[np.ndarray]
    values: list[np.ndarray]


def build(case: Case, seed: int = 0, backend: str = "xla") -> Inputs:
    """Random arrays for a case, the pool in the back end's layout; blocks lie in the pool in random order."""
    rng = np.random.default_rng(seed)
    tables, num_blocks = _tables(case, rng)
    shape = (case.num_kv_heads, case.head_dim)
    keys, values = ([_normal(rng, (kv_len, *shape), case.dtype) for kv_len, _ in case.seqs] for _ in range(2))

    slots = [table[np.arange(n) // case.block_size] * case.block_size + np.arange(n) % case.block_size
             for table, (n, _) in zip(tables, case.seqs, strict=False)]
    old = np.concatenate([s[: n - q] for s, (n, q) in zip(slots, case.seqs, strict=True)])
    kv = _poisoned_pool(case, num_blocks, backend)
    old_keys, old_values = (
        jnp.asarray(np.concatenate([x[: n - q] for x, (n, q) in zip(xs, case.seqs, strict=True)]))
        for xs in (keys, values)
    )
    kv = write(kv, old_keys, old_values, jnp.asarray(old, jnp.int32), backend)

    q_lens = np.array([q for _, q in case.seqs] + [0] * case.padding_seqs)
    padding = case.padding_seqs * case.max_q_len if case.max_q_len else case.padding_tokens
    num_tokens = q_lens.sum() + padding

    def pad(rows):
        rows = np.concatenate(rows)
        return np.concatenate([rows, np.zeros((num_tokens - len(rows), *rows.shape[1:]), rows.dtype)])

    new = [pad([x[n - q :] for x, (n, q) in zip(xs, case.seqs, strict=True)]) for xs in (keys, values, slots)]
    metadata = AttentionMetadata(
        slot_mapping=jnp.asarray(new[2], jnp.int32),
        block_tables=jnp.asarray(tables, jnp.int32),
        kv_lens=jnp.asarray([n for n, _ in case.seqs] + [0] * case.padding_seqs, jnp.int32),
        cu_q_lens=jnp.asarray(np.concatenate([[0], q_lens.cumsum()]), jnp.int32),
        num_decodes=jnp.asarray(_leading_ones(q_lens), jnp.int32),
    )
    q = jnp.asarray(_normal(rng, (num_tokens, case.num_heads, case.head_dim), case.dtype))
    sinks = jnp.asarray(rng.normal(size=case.num_heads), jnp.float32) if case.sinks else None
    options = {
        "scale": case.head_dim**-0.5, "sliding_window": case.sliding_window, "softcap": case.softcap,
        "sinks": sinks, "max_q_len": case.max_q_len,
    }
    return Inputs(q, jnp.asarray(new[0]), jnp.asarray(new[1]), kv, metadata, options, keys, values)


def _tables(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Block tables [B, M] of shuffled blocks (0 past a sequence's end) and the number of blocks in the pool."""
    counts = [-(-kv_len // case.block_size) for kv_len, _ in case.seqs]
    num_blocks = sum(counts) + 3                                  # the null block, and two that nobody uses
    ids = iter(rng.permutation(np.arange(1, num_blocks)))
    tables = np.zeros((len(case.seqs) + case.padding_seqs, max(case.max_blocks, *counts)), np.int32)
    for table, count in zip(tables, counts, strict=False):
        table[:count] = [next(ids) for _ in range(count)]
    return tables, num_blocks


def _poisoned_pool(case: Case, num_blocks: int, backend: str) -> KVLayer:
    dtype = case.dtype if case.kv_dtype is None else case.kv_dtype
    spec = kv_layer_spec(num_blocks, case.block_size, case.num_kv_heads, case.head_dim, dtype, backend)
    return KVLayer(**{
        name: jnp.full(shape, 99 if jnp.issubdtype(kind, jnp.integer) else jnp.nan, kind)
        for name, (shape, kind, _) in spec.items()
    })


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Normal numbers that the dtype holds exactly, as that dtype."""
    return rng.normal(size=shape).astype(np.float32).astype(dtype)


def _leading_ones(q_lens: np.ndarray) -> int:
    return int(np.cumprod(q_lens == 1).sum())


DECODE = Case("decode", ((37, 1), (1, 1), (128, 1), (16, 1), (17, 1)), max_q_len=1)
MIXED = Case("mixed", ((37, 1), (90, 1), (70, 70), (3, 3), (100, 33)), padding_seqs=1, padding_tokens=5)

CASES = (
    DECODE,
    MIXED,
    replace(DECODE, name="decode-empty-slots", padding_seqs=3),
    replace(DECODE, name="decode-one-sequence", seqs=((300, 1),), padding_seqs=1, max_blocks=64),
    replace(DECODE, name="decode-many-chunks", seqs=((700, 1), (5, 1), (512, 1), (257, 1)), max_blocks=50),
    replace(DECODE, name="decode-mha", num_heads=3, num_kv_heads=3),
    replace(DECODE, name="decode-group-of-3", num_heads=9, num_kv_heads=3),
    replace(DECODE, name="decode-group-of-8", num_heads=8, num_kv_heads=1, head_dim=128),
    replace(DECODE, name="decode-wide-heads", num_heads=4, num_kv_heads=1, head_dim=256),
    replace(DECODE, name="decode-odd-heads", num_heads=2, num_kv_heads=1, head_dim=80, block_size=8, max_blocks=20),
    replace(DECODE, name="decode-large-blocks", block_size=64),
    replace(DECODE, name="decode-window", sliding_window=20),
    replace(DECODE, name="decode-window-skips-chunks", seqs=((700, 1), (640, 1)), sliding_window=33, max_blocks=44),
    replace(DECODE, name="decode-softcap", softcap=2.0),
    replace(DECODE, name="decode-sinks", sinks=True),
    replace(DECODE, name="decode-bfloat16", dtype=jnp.bfloat16),
    replace(DECODE, name="decode-float16", dtype=jnp.float16),
    replace(DECODE, name="decode-bfloat16-pool", kv_dtype=jnp.bfloat16),
    replace(DECODE, name="decode-int8", kv_dtype=jnp.int8),
    replace(DECODE, name="decode-fp8", kv_dtype=jnp.float8_e4m3fn, padding_seqs=1),
    replace(DECODE, name="several-queries", seqs=((37, 3), (3, 3), (128, 3)), padding_seqs=1, max_q_len=3),
    replace(MIXED, name="only-decodes", seqs=((37, 1), (90, 1)), padding_seqs=2, padding_tokens=6),
    replace(MIXED, name="many-decodes", seqs=(*((9 * i + 1, 1) for i in range(20)), (40, 20)), max_blocks=12),
    replace(MIXED, name="whole-prompts", seqs=((150, 150), (64, 64), (65, 65), (2, 2)), padding_tokens=0),
    replace(MIXED, name="continued-prompts", seqs=((600, 50), (333, 70), (64, 32)), max_blocks=40),
    replace(MIXED, name="mixed-mha", num_heads=3, num_kv_heads=3),
    replace(MIXED, name="mixed-group-of-3", num_heads=9, num_kv_heads=3, padding_seqs=0, padding_tokens=0),
    replace(MIXED, name="mixed-wide-heads", num_heads=4, num_kv_heads=1, head_dim=256),
    replace(MIXED, name="mixed-window", sliding_window=24),
    replace(MIXED, name="mixed-window-skips-chunks", seqs=((700, 1), (650, 90)), sliding_window=40, max_blocks=44),
    replace(MIXED, name="mixed-softcap-sinks-window", softcap=3.0, sinks=True, sliding_window=31),
    replace(MIXED, name="mixed-bfloat16", dtype=jnp.bfloat16),
    replace(MIXED, name="mixed-int8", kv_dtype=jnp.int8),
    replace(MIXED, name="mixed-fp8-bfloat16", dtype=jnp.bfloat16, kv_dtype=jnp.float8_e4m3fn),
)

# What a benchmark or a tuner runs, here with the heads of a small Llama; replace() brings other heads in.
STEP = Case("step", (), num_heads=9, num_kv_heads=3, dtype=jnp.bfloat16)
DECODE_STEPS = tuple(
    replace(STEP, name=f"decode {n} x {kv_len}", seqs=((kv_len, 1),) * n, max_q_len=1)
    for n, kv_len in ((2, 256), (4, 256), (8, 256), (16, 256), (32, 64), (32, 256), (32, 1024), (64, 256), (8, 2048))
)
MIXED_STEPS = (
    replace(STEP, name="prompt of 512", seqs=((512, 512),)),
    replace(STEP, name="8 prompts of 64", seqs=((64, 64),) * 8),
    replace(STEP, name="512 more after 1536", seqs=((2048, 512),)),
    replace(STEP, name="16 decodes + 48", seqs=(*(((300, 1),) * 16), (48, 48))),
)
