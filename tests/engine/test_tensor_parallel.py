"""The whole engine on a mesh of several fake CPU devices gives the tokens of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
import jax
from jaxengine import LLM, SamplingParams
cases = json.load(open(sys.argv[1]))["cases"]
llm = LLM(sys.argv[2], dtype="float32", tensor_parallel_size=3, num_blocks=40, max_num_seqs=2,
          max_num_batched_tokens=64, token_buckets=[64], max_model_len=256, progress=False)
assert llm.engine.runner.mesh.size == 3 and len(jax.devices()) == 3
params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=5)
sampled = SamplingParams(temperature=0.8, seed=3, max_tokens=6, ignore_eos=True, frequency_penalty=0.5)
outputs = llm.generate([c["prompt_ids"] for c in cases], params, use_tqdm=False)
drawn = llm.generate([c["prompt_ids"] for c in cases], sampled, use_tqdm=False)
print(json.dumps([[o.outputs[0].token_ids for o in outputs], [o.outputs[0].token_ids for o in drawn]]))
"""


@pytest.mark.slow
def test_tensor_parallel(golden: Path, smollm2: str) -> None:
    """SmolLM2 has 3 KV heads, so three devices hold one each."""
    file = golden / "reference_smollm2.json"
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=3", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SCRIPT, str(file), smollm2]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stderr
    greedy, drawn = json.loads(result.stdout.splitlines()[-1])
    assert greedy == [c["greedy_ids"][:10] for c in json.loads(file.read_text())["cases"]]
    assert all(len(ids) == 6 for ids in drawn)
