"""What every back end must do. A back end's test file subclasses AttentionSuite and names itself."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_oracle import attend
from pool_contents import contents

from pallas_kernels.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.ragged_paged_attention.cases import CASES, DECODE, MIXED, build
from pallas_kernels.ragged_paged_attention.layout import by_token
from pallas_kernels.ragged_paged_attention.pool import QUANTIZED

# Largest difference from float64 on normal data, by the dtype that the dots run in.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}
# The same between a quantised pool and the exact keys and values: largest and root mean square.
QUANTIZED_TOLERANCE = {"int8": (0.02, 0.004), "float8_e4m3fn": (0.2, 0.02)}


class AttentionSuite:
    backend: str
    compiler_options: dict | None = None

    @classmethod
    @functools.cache      # the tests of a case share what is compiled, and its result
    def _run(cls, case):
        inputs = build(case, backend=cls.backend)
        op = functools.partial(ragged_paged_attention, backend=cls.backend, **inputs.options)
        step = jax.jit(op, compiler_options=cls.compiler_options)
        return inputs, step, *step(*inputs[:5])

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_matches_float64(self, case):
        inputs, _, out, kv = self._run(case)
        out = np.asarray(out.astype(jnp.float32))
        assert np.isfinite(out).all(), "padding rows must be finite"

        place = inputs.metadata.block_tables, inputs.metadata.kv_lens, case, self.backend
        keys, values = contents(kv.k, kv.k_scale, *place), contents(kv.v, kv.v_scale, *place)
        cu = np.asarray(inputs.metadata.cu_q_lens)
        expected = attend(inputs.q, cu, keys, values, **inputs.options)
        tolerance = TOLERANCE[jnp.dtype(case.dtype).name]
        np.testing.assert_allclose(out[: cu[-1]], expected, rtol=0, atol=tolerance)

        if jnp.dtype(kv.k.dtype) in QUANTIZED:
            exact = attend(inputs.q, cu, inputs.keys, inputs.values, **inputs.options)
            error = out[: cu[-1]] - exact
            largest, typical = QUANTIZED_TOLERANCE[kv.k.dtype.name]
            assert np.abs(error).max() < largest + tolerance
            assert np.sqrt(np.square(error).mean()) < typical + tolerance / 4

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_writes_only_its_slots(self, case):
        inputs, _, _, kv = self._run(case)
        place = inputs.metadata.block_tables, inputs.metadata.kv_lens, case, self.backend
        for stored, scale, exact in ((kv.k, kv.k_scale, inputs.keys), (kv.v, kv.v_scale, inputs.values)):
            for got, want in zip(contents(stored, scale, *place), exact, strict=True):
                step = {"int8": 1 / 254, "float8_e4m3fn": 1 / 16, "bfloat16": 1 / 256}.get(stored.dtype.name, 0)
                step = step if stored.dtype != case.dtype else 0
                bound = step * np.abs(want.astype(np.float64)).max(-1, keepdims=True) + 1e-7 * bool(step)
                assert (np.abs(got - want.astype(np.float64)) <= bound).all()
        if case.kv_dtype != jnp.int8:     # nothing else was touched: every slot without a token still is NaN
            filled = np.isfinite(np.asarray(by_token(kv.v.astype(jnp.float32), case.head_dim, self.backend)))
            used = sum(n for n, _ in case.seqs)
            assert filled[1:].all(-1).sum() == used * case.num_kv_heads
            assert filled[1:].any(-1).sum() == used * case.num_kv_heads

    @pytest.mark.parametrize("case", [DECODE, MIXED], ids=lambda case: case.name)
    def test_rows_do_not_depend_on_their_neighbours(self, case):
        """A NaN in one sequence stays there, and the others' rows are what they were."""
        inputs, step, out, _ = self._run(case)
        first, second = (int(i) for i in inputs.metadata.cu_q_lens[1:3])
        k, v = (x.at[first:second].set(jnp.nan) for x in (inputs.k, inputs.v))
        again, _ = step(inputs.q, k, v, inputs.kv, inputs.metadata)
        assert np.isnan(again[first:second]).all()
        np.testing.assert_allclose(again[:first], out[:first], rtol=0, atol=1e-6)
        np.testing.assert_allclose(again[second:], out[second:], rtol=0, atol=1e-6)

    def test_chunks_of_a_prompt_equal_the_whole(self):
        half = replace(MIXED, seqs=((75, 75),), padding_seqs=0, padding_tokens=0, max_blocks=10)
        _, step, _, _ = self._run(half)
        inputs, _, out, _ = self._run(replace(half, seqs=((150, 150),)))
        kv, parts = inputs.kv, []
        for start, stop in ((0, 75), (75, 150)):
            metadata = replace(
                inputs.metadata, slot_mapping=inputs.metadata.slot_mapping[start:stop],
                kv_lens=jnp.array([stop], jnp.int32), cu_q_lens=jnp.array([0, stop - start], jnp.int32),
            )
            part, kv = step(*(x[start:stop] for x in (inputs.q, inputs.k, inputs.v)), kv, metadata)
            parts.append(part)
        np.testing.assert_allclose(np.concatenate(parts), out, rtol=0, atol=2e-6)
