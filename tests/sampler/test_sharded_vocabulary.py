"""Logits that are sharded over the vocabulary give the same ids as on one device."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
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
rows[:, SLOT] = rows[:, POSITION] = np.arange(R)
results = []
for mesh in (make_mesh(devices=jax.devices()[:1]), make_mesh(kv=2)):
    replicated = NamedSharding(mesh, P())
    with jax.set_mesh(mesh):
        x = jax.device_put(logits, NamedSharding(mesh, P(None, ("kv", "group"))))
        state = jax.device_put(sampler.init_state(R, V), replicated)
        inputs = InputPlacer(mesh, V).place(SampleInputs(rows, None, None))
        out, state = jax.jit(sampler.sample, donate_argnums=1)(x, state, inputs)
        best, state = jax.jit(sampler.greedy, donate_argnums=1)(x, state, np.arange(R, dtype=np.int32))
        scores = jax.jit(sampler.score)(x, out.ids)
        results.append([np.asarray(a) for a in (out.ids, best.ids, out.top_ids, scores.rank, state.output_counts)])
for one, two in zip(*results, strict=True):
    np.testing.assert_array_equal(one, two)
print("same", len(results[0]))
"""


@pytest.mark.slow
def test_two_devices_sample_as_one() -> None:
    env = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["same", "5"]
