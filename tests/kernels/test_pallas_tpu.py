"""The TPU kernel in both of Pallas' TPU interpreters, and lowered for a TPU.

`interpret=True` is quick and knows no DMA: it checks the numbers. The other interpreter copies only when waited for, so
that a use before the wait shows as NaN, or copies at once and reports races.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_oracle import attend
from attention_suite import QUANTIZED_TOLERANCE, AttentionSuite
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.need import Need
from pallas_kernels.ragged_paged_attention import KVLayer, api, tpu, tpu_pool, tpu_support
from pallas_kernels.ragged_paged_attention.cases import CASES, DECODE, MIXED, build

pytestmark = pytest.mark.timeout(240)

TILING = tpu.Tiling(tile_tokens=16, chunk_rows=128)      # small: the cases have several chunks and tiles
QUICK = {"decode", "mixed", "decode-int8", "mixed-softcap-sinks-window"}


def interpreted(mode):
    return partial(tpu.ragged_paged_attention, interpret=mode, tiling=TILING)


def servable(case):
    return tpu_pool.why_not(case.head_dim, case.block_size, case.kv_dtype or case.dtype) is None


# The cases that the layout can hold; all but the quick ones are marked slow.
SERVED = [
    pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow)
    for case in CASES if servable(case)
]


class TestNumbers(AttentionSuite):
    backend = "pallas_tpu"
    compiler_options = {"xla_backend_optimization_level": 0}      # noqa: RUF012  half the time to compile

    @pytest.fixture(autouse=True)
    def _interpreted(self, monkeypatch):
        monkeypatch.setitem(api.BACKENDS, "pallas_tpu", interpreted(True))

    @pytest.mark.parametrize("case", SERVED)
    def test_matches_float64(self, case):
        super().test_matches_float64(case)

    @pytest.mark.parametrize("case", SERVED)
    def test_writes_only_its_slots(self, case):
        super().test_writes_only_its_slots(case)

    @pytest.mark.slow
    def test_chunks_of_a_prompt_equal_the_whole(self):
        super().test_chunks_of_a_prompt_equal_the_whole()


def test_bits_depend_neither_on_neighbours_nor_on_chunks():
    """A prompt in one step beside two other sequences, and in two steps beside nothing, by one executable."""
    case = replace(MIXED, seqs=((40, 1), (9, 9), (70, 70)), padding_seqs=0, padding_tokens=4)
    inputs = build(case, backend="pallas_tpu")
    step = jax.jit(partial(interpreted(True), **inputs.options), compiler_options=TestNumbers.compiler_options)
    whole, _ = step(*inputs[:5])

    kv, parts = inputs.kv, []
    for start, stop in ((0, 45), (45, 70)):
        at = np.r_[10 + start : 10 + stop, np.zeros(84 - (stop - start), int)]      # then padding
        tokens = jnp.asarray(at)
        alone = replace(
            inputs.metadata,
            slot_mapping=inputs.metadata.slot_mapping[tokens].at[stop - start :].set(0),
            block_tables=jnp.roll(inputs.metadata.block_tables, 1, axis=0),
            kv_lens=jnp.array([stop, 0, 0], jnp.int32),
            cu_q_lens=jnp.array([0, stop - start, stop - start, stop - start], jnp.int32),
            num_decodes=jnp.array(0, jnp.int32),
        )
        part, kv = step(inputs.q[tokens], inputs.k[tokens], inputs.v[tokens], kv, alone)
        parts.append(np.asarray(part)[: stop - start])
    np.testing.assert_array_equal(np.concatenate(parts), np.asarray(whole)[10:80])


FEW = (
    replace(MIXED, name="mixed-int8", seqs=((300, 1), (20, 20), (50, 11)), max_blocks=20, kv_dtype=jnp.int8),
    replace(DECODE, name="decode", seqs=((300, 1), (1, 1), (37, 1)), padding_seqs=1, max_blocks=20),
)


@pytest.mark.parametrize(("case", "params"), [
    pytest.param(case, params, id=f"{case.name}-{name}", marks=pytest.mark.slow if slow else ())
    for case, name, slow, params in (
        (FEW[0], "on-wait", False, {"dma_execution_mode": "on_wait"}),
        (FEW[0], "races", True, {"dma_execution_mode": "eager", "detect_races": True}),
        (FEW[1], "on-wait", True, {"dma_execution_mode": "on_wait"}),
        (FEW[1], "races", False, {"dma_execution_mode": "eager", "detect_races": True}),
        (replace(MIXED, head_dim=128, name="mixed-wide"), "races", True,
         {"dma_execution_mode": "eager", "detect_races": True}),
    )
])
def test_copies_are_awaited_and_do_not_race(case, params):
    """Uninitialised memory is NaN here, so what is used before it arrived, or was never copied, would show."""
    inputs = build(case, backend="pallas_tpu")
    step = jax.jit(partial(interpreted(pltpu.InterpretParams(**params)), **inputs.options))
    try:
        out, _ = step(*inputs[:5])
        out = np.asarray(out)
        raced = bool(params.get("detect_races")) and interpret_pallas_call.races.races_found
    finally:
        pltpu.reset_tpu_interpret_mode_state()
    assert not raced
    cu = np.asarray(inputs.metadata.cu_q_lens)
    expected = attend(inputs.q, cu, inputs.keys, inputs.values, **inputs.options)
    atol = 2e-5 if case.kv_dtype is None else QUANTIZED_TOLERANCE["int8"][0]
    np.testing.assert_allclose(out[: cu[-1]], expected, rtol=0, atol=atol)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("case", [
    replace(DECODE, head_dim=128, dtype=jnp.bfloat16),
    replace(MIXED, sinks=True, softcap=3.0, sliding_window=31, dtype=jnp.bfloat16, kv_dtype=jnp.int8),
], ids=["decode", "mixed"])
def test_lowers_for_a_tpu_without_one(case):
    inputs = build(case, backend="pallas_tpu")
    step = jax.jit(partial(api.ragged_paged_attention, backend="pallas_tpu", **inputs.options))
    text = step.trace(*inputs[:5]).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") == (2 if case.max_q_len else 3)      # the write, decodes, the others
    assert "stablehlo.scatter" not in text


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_pool_layout_holds_each_token_once(head_dim):
    """Token by token through the layout and back; whole rows of 128 lanes."""
    spec = tpu_pool.kv_layer_spec(5, 32, 2, head_dim, jnp.float32)
    assert spec["k"][0][3] % tpu_pool.LANES == 0
    kv = KVLayer(*(jnp.zeros(shape, dtype) for shape, dtype, _ in spec.values()))
    tokens = jnp.arange(4 * 32 * 2 * head_dim, dtype=jnp.float32).reshape(-1, 2, head_dim)
    kv = tpu_pool.write(kv, tokens, -tokens, 32 + jnp.arange(4 * 32))
    stored = tpu_pool.unpack(kv.k, head_dim)[1:].swapaxes(1, 2).reshape(tokens.shape)
    np.testing.assert_array_equal(stored, tokens)


@pytest.mark.parametrize(("change", "reason"), [
    ({"platform": "cuda"}, "the platform is cuda"),
    ({"kv_dtype": jnp.float16}, "float16"),
    ({"query_dtype": jnp.float16}, "float16"),
    ({"block_size": 8}, "block_size=8"),
    ({"block_size": 24}, "block_size=24"),
    ({"head_dim": 1024}, "head_dim=1024"),
])
def test_says_why_it_cannot_serve(change, reason):
    need = Need("tpu", 64, 16, jnp.bfloat16, jnp.bfloat16, 4)
    assert tpu_support.unsupported(need) is None
    assert reason in tpu_support.unsupported(replace(need, **change))
