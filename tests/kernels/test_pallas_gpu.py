"""The Hopper kernels in Pallas' GPU interpreter, with its race detector on.

The interpreter knows barriers, copies and shared memory, but not swizzles, nor that wgmma is asynchronous; make kernels
and a GPU show those. It is slow, so a few small cases stand for the rest, which are marked slow.
"""

import functools
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_suite import AttentionSuite
from hopper_cases import hopper_cases, served

from pallas_kernels.ragged_paged_attention import api
from pallas_kernels.ragged_paged_attention.cases import DECODE, MIXED, build

if jax.__version_info__ < (0, 11):
    pytest.skip("jax before 0.11 has no interpreter for Mosaic GPU kernels", allow_module_level=True)

from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.ragged_paged_attention import gpu
from pallas_kernels.ragged_paged_attention.gpu_decode import DecodeTile
from pallas_kernels.ragged_paged_attention.gpu_prefill import PrefillTile
from pallas_kernels.ragged_paged_attention.gpu_tuning import Tiles

pytestmark = pytest.mark.timeout(180)      # a wrong barrier count hangs

# Small enough that the cases have several splits and tiles, and more work than blocks of threads.
TILES = Tiles(
    DecodeTile(kv_tile=64, stages=2, split=128, ctas=3), PrefillTile(kv_tile=64, stages=2, warpgroups=1, ctas=3)
)
QUICK = {"decode-sinks", "decode-many-chunks", "decode-window", "mixed-softcap-sinks-window", "decode-fp8"}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Runs "pallas_gpu" interpreted, and fails on races."""
    monkeypatch.setitem(api.BACKENDS, "pallas_gpu", run)
    yield
    races = gpu_callbacks.get_races() if gpu_callbacks._shared_memory is not None else None
    gpu_callbacks.reset_gpu_interpret_mode_state()
    assert not (races and races.races_found)


def run(*args, **options):
    return gpu.ragged_paged_attention(
        *args, tiles=TILES, interpret=plgpu.InterpretGPUParams(detect_races=True), **options
    )


def parameters():
    for case in hopper_cases():
        yield pytest.param(case, marks=() if case.name in QUICK else pytest.mark.slow, id=case.name)


class TestPallasGpu(AttentionSuite):
    backend = "pallas_gpu"

    @pytest.mark.parametrize("case", list(parameters()))
    def test_matches_float64(self, case):
        super().test_matches_float64(case)

    @pytest.mark.parametrize("case", [served(DECODE), served(MIXED)], ids=lambda case: case.name)
    def test_writes_only_its_slots(self, case):
        super().test_writes_only_its_slots(case)

    def test_two_warpgroups_take_turns(self, monkeypatch):
        tiles = replace(TILES, prefill=PrefillTile(kv_tile=64, stages=2, warpgroups=2, ctas=2))
        monkeypatch.setattr(sys.modules[__name__], "TILES", tiles)
        seqs = ((37, 1), (150, 70), (20, 20))
        super().test_matches_float64(served(replace(MIXED, name="two-warpgroups", num_heads=6, seqs=seqs)))

    def test_rows_do_not_depend_on_their_neighbours(self):
        """A NaN in one sequence stays there, and the others' rows are what they were, to the bit."""
        case = served(replace(MIXED, seqs=((37, 1), (90, 1), (20, 20), (100, 33))))
        inputs, step, out, _ = self._run(case)
        for sick in (1, 3):
            start, stop = (int(i) for i in inputs.metadata.cu_q_lens[sick : sick + 2])
            k, v = (x.at[start:stop].set(jnp.nan) for x in (inputs.k, inputs.v))
            again, _ = step(inputs.q, k, v, inputs.kv, inputs.metadata)
            assert np.isnan(bits(again)[start:stop]).all()
            np.testing.assert_array_equal(np.delete(bits(again), slice(start, stop), 0),
                                          np.delete(bits(out), slice(start, stop), 0))

    def test_chunks_of_a_prompt_equal_the_whole(self):
        """To the bit, wherever the cuts fall, and whether or not other prompts and decodes share the batch."""
        inputs = build(served(replace(MIXED, seqs=((150, 150),), padding_seqs=0, padding_tokens=0)))
        inputs = inputs._replace(q=coarse(inputs.q), k=coarse(inputs.k))
        whole, _ = self._chunk(inputs, inputs.kv, 0, 150)
        kv, parts = inputs.kv, []
        for start, stop in ((0, 70), (70, 73), (73, 150)):
            part, kv = self._chunk(inputs, kv, start, stop, with_a_decode=start == 70)
            parts.append(part)
        np.testing.assert_array_equal(np.concatenate(parts), whole)

    def _chunk(self, inputs, kv, start, stop, with_a_decode=False):
        """Tokens [start, stop) of the only prompt; `with_a_decode`: behind a decode of its first token by itself."""
        n, decodes = stop - start, int(with_a_decode)
        first = np.array([0] * decodes + list(range(start, stop)))
        tables = jnp.repeat(inputs.metadata.block_tables, 1 + decodes, axis=0)
        metadata = replace(
            inputs.metadata, slot_mapping=inputs.metadata.slot_mapping[first], block_tables=tables,
            kv_lens=jnp.array([1] * decodes + [stop], jnp.int32),
            cu_q_lens=jnp.array([0] * decodes + [decodes, decodes + n], jnp.int32), num_decodes=jnp.int32(decodes),
        )
        op = functools.partial(run, **inputs.options)
        part, kv = jax.jit(op)(inputs.q[first], inputs.k[first], inputs.v[first], kv, metadata)
        return bits(part)[decodes:], kv

    def test_a_decode_is_the_same_alone_and_in_any_batch(self):
        """To the bit: in a decode step beside others, alone, and in a mixed step beside a prompt."""
        seqs = ((300, 1), (5, 1), (129, 1))
        inputs, _, out, kv = self._run(served(replace(DECODE, seqs=seqs, max_blocks=20)))
        metadata = inputs.metadata
        for i, mixed in ((0, False), (2, True)):
            rows = np.array([i, 1, 1]) if mixed else np.array([i])
            alone = replace(
                metadata, slot_mapping=metadata.slot_mapping[rows], block_tables=metadata.block_tables[rows[:2]],
                kv_lens=metadata.kv_lens[rows[:2]], num_decodes=jnp.int32(1),
                cu_q_lens=jnp.array([0, 1, 3] if mixed else [0, 1], jnp.int32),
            )
            op = functools.partial(run, **inputs.options | {"max_q_len": None if mixed else 1})
            again, _ = jax.jit(op)(*(x[rows] for x in (inputs.q, inputs.k, inputs.v)), kv, alone)
            np.testing.assert_array_equal(bits(again)[0], bits(out)[i])


def coarse(x):
    """Rounded so that sums of products are exact: the interpreter's wgmma adds in an order that depends on the row."""
    return jnp.round(x * 8) / 8


def bits(x):
    return np.asarray(x.astype(jnp.float32))
