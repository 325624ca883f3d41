"""What every back end must do. A back end's test file subclasses AttentionSuite and names itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_oracle import attend

from pallas_kernels.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.ragged_paged_attention.cases import CASES, build
from pallas_kernels.ragged_paged_attention.pool import QUANTIZED

# Largest difference from float64 on normal data, by the dtype that the dots run in.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}
# The same between a quantised pool and the exact keys and values.
QUANTIZED_TOLERANCE = {"int8": 0.02, "float8_e4m3fn": 0.2}


def contents(pool, scale, tables, kv_lens, block_size):
    """Each sequence's keys (or values) out of the pool, dequantised, f64[kv_len, K, H]."""
    pool = np.asarray(pool.astype(jnp.float32)).astype(np.float64)
    pool = pool.reshape(*pool.shape[:2], block_size, -1)
    if scale is not None:
        pool = pool * np.asarray(scale, np.float64)[..., None]
    return [
        np.concatenate([pool[block] for block in table], axis=1)[:, :n].swapaxes(0, 1)
        for table, n in zip(np.asarray(tables), np.asarray(kv_lens), strict=True) if n
    ]


def run(backend, inputs):
    step = jax.jit(functools.partial(ragged_paged_attention, backend=backend, **inputs.options))
    return step(inputs.q, inputs.k, inputs.v, inputs.kv, inputs.metadata)


@functools.cache
def run_case(backend, case):
    inputs = build(case)
    return inputs, *run(backend, inputs)


class AttentionSuite:
    backend: str

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_matches_float64(self, case):
        inputs, out, kv = run_case(self.backend, case)
        out = np.asarray(out.astype(jnp.float32))
        assert np.isfinite(out).all(), "padding rows must be finite"

        place = inputs.metadata.block_tables, inputs.metadata.kv_lens, case.block_size
        keys, values = contents(kv.k, kv.k_scale, *place), contents(kv.v, kv.v_scale, *place)
        cu = np.asarray(inputs.metadata.cu_q_lens)
        expected = attend(inputs.q, cu, keys, values, **inputs.options)
        tolerance = TOLERANCE[jnp.dtype(case.dtype).name]
        np.testing.assert_allclose(out[: cu[-1]], expected, rtol=0, atol=tolerance)

        if jnp.dtype(kv.k.dtype) in QUANTIZED:
            exact = attend(inputs.q, cu, inputs.keys, inputs.values, **inputs.options)
            error = np.abs(out[: cu[-1]] - exact).max()
            print(case.name, kv.k.dtype.name, "max", error, "rms", np.sqrt(((out[: cu[-1]] - exact)**2).mean()))
            assert error < QUANTIZED_TOLERANCE[kv.k.dtype.name] + tolerance

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_writes_only_its_slots(self, case):
        inputs, _, kv = run_case(self.backend, case)
        place = inputs.metadata.block_tables, inputs.metadata.kv_lens, case.block_size
        for stored, scale, exact in ((kv.k, kv.k_scale, inputs.keys), (kv.v, kv.v_scale, inputs.values)):
            for got, want in zip(contents(stored, scale, *place), exact, strict=True):
                step = {"int8": 1 / 254, "float8_e4m3fn": 1 / 16, "bfloat16": 1 / 256}.get(stored.dtype.name, 0)
                step = step if stored.dtype != case.dtype else 0
                bound = step * np.abs(want.astype(np.float64)).max(-1, keepdims=True) + 1e-7 * bool(step)
                assert (np.abs(got - want.astype(np.float64)) <= bound).all()
        if case.kv_dtype != jnp.int8:     # nothing else was touched: every slot without a token still is NaN
            filled = np.isfinite(np.asarray(kv.v.astype(jnp.float32)).reshape(*kv.v.shape[:2], case.block_size, -1))
            used = sum(n for n, _ in case.seqs)
            assert filled[1:].all(-1).sum() == used * case.num_kv_heads
            assert filled[1:].any(-1).sum() == used * case.num_kv_heads
