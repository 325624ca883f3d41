"""Logits that are sharded over the vocabulary give the same ids as on one device."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxengine.bench.collectives import collectives
from jaxengine.engine import sampler
from jaxengine.engine.sampling_batch import POSITION, SLOT, RowTemplate, SampleInputs
from jaxengine.engine.sampling_rows import InputPlacer
from jaxengine.types import SamplingParams
from sharding import make_mesh

R, V = 8, 512
logits = np.random.default_rng(0).standard_normal((R, V), dtype=np.float32)
options = [{}, {"top_k": 9}, {"top_p": 0.5}, {"repetition_penalty": 1.5}, {"logprobs": 2}, {"temperature": 0.0},
           {"min_p": 0.3}, {"top_k": 100}]
rows = np.stack([RowTemplate.pack(SamplingParams(seed=i, **o), V).row for i, o in enumerate(options)])
rows[:, POSITION] = np.arange(R)
results = []
for sizes in ({}, {"kv": 2}, {"kv": 2, "group": 2}, {"data": 2, "kv": 2}):
    mesh = make_mesh(**sizes, devices=jax.devices())
    shards = mesh.shape["data"]
    with jax.set_mesh(mesh):
        x = jax.device_put(logits, NamedSharding(mesh, P("data", ("kv", "group"))))
        slots = np.arange(R, dtype=np.int32) % (R // shards)
        rows[:, SLOT] = slots
        state = jax.jit(lambda: sampler.init_state(R // shards, V, shards))()
        inputs = InputPlacer(mesh, V).place(SampleInputs(rows, None, None))
        sample = jax.jit(sampler.sample).lower(x, state, inputs).compile()
        greedy = jax.jit(sampler.greedy).lower(x, state, slots).compile()
        sent = collectives(sample.as_text() + greedy.as_text(), mesh.shape)
        assert all(c.num_bytes <= 4 * 3 * 2 * R * 2 for c in sent if c.kind != "all-to-all"), "logits were gathered"
        assert not any("data" in c.axes for c in sent)
        out, state = sample(*jax.device_put((x, state, inputs), sample.input_shardings[0]))
        best, state = greedy(*jax.device_put((x, state, slots), greedy.input_shardings[0]))
        scores = jax.jit(sampler.score)(x, out.ids)
        counts = np.asarray(state.output_counts).reshape(shards, -1, V)[:, :-1].reshape(R, V)
        last = np.asarray(state.last_tokens).reshape(shards, -1)[:, :-1]
        assert last.ravel().tolist() == np.asarray(best.ids).tolist()
        results.append([np.asarray(a) for a in (out.ids, best.ids, np.asarray(out.top_ids)[5], scores.rank, counts)])
for other in results[1:]:
    for one, two in zip(results[0], other, strict=True):
        np.testing.assert_array_equal(one, two)
print("same", len(results))
"""


@pytest.mark.slow
def test_several_devices_sample_as_one() -> None:
    env = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["same", "4"]
