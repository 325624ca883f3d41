"""Reads sequences back out of a paged pool."""

import jax.numpy as jnp
import numpy as np

from pallas_kernels.ragged_paged_attention.layout import by_token


def contents(pool, scale, tables, kv_lens, case, backend):
    """Each sequence's keys (or values) out of the pool, dequantised, f64[kv_len, K, H]."""
    pool = np.asarray(by_token(pool.astype(jnp.float32), case.head_dim, backend)).astype(np.float64)
    if scale is not None:
        pool = pool * np.asarray(scale, np.float64)[..., : case.block_size, None]
    return [
        np.concatenate([pool[block] for block in table], axis=1)[:, :n].swapaxes(0, 1)
        for table, n in zip(np.asarray(tables), np.asarray(kv_lens), strict=True) if n
    ]
