"""Quantised and narrow KV pools: log-probabilities stay within a measured bound of the float32 pool's."""

import json
from pathlib import Path

import pytest

from jaxengine import LLM, SamplingParams

# (mean, largest) difference in log-probability over the oracle's prompts and 20 teacher-forced tokens each: about
# twice what was measured. SmolLM2 is a small model with outlying key channels; larger ones suffer less.
BOUNDS = {"bfloat16": (0.03, 0.3), "float16": (0.004, 0.03), "int8": (0.1, 1.1), "fp8_e4m3": (0.25, 2.0)}


def scores(llm: LLM, texts: list[list[int]]) -> list[float]:
    outputs = llm.generate(texts, SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm=False)
    return [next(iter(e.values())).logprob for o in outputs for e in (o.prompt_logprobs or [])[1:] if e]


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", list(BOUNDS))
def test_close_to_float32(smol: LLM, smollm2: str, golden: Path, kv_cache_dtype: str) -> None:
    cases = json.loads((golden / "reference_smollm2.json").read_text())["cases"]
    texts = [c["prompt_ids"] + c["greedy_ids"][:20] for c in cases]
    expected = scores(smol, texts)
    with LLM(smollm2, dtype="float32", kv_cache_dtype=kv_cache_dtype, num_blocks=40, max_num_seqs=4,
             max_num_batched_tokens=64, token_buckets=[64], max_model_len=256, progress=False) as llm:
        found = scores(llm, texts)
        assert llm.engine.memory_plan.block_bytes < smol.engine.memory_plan.block_bytes
    differences = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    mean, worst = sum(differences) / len(differences), max(differences)
    print(f"{kv_cache_dtype}: mean {mean:.4f}, largest {worst:.4f}")
    assert 0 < mean < BOUNDS[kv_cache_dtype][0]
    assert worst < BOUNDS[kv_cache_dtype][1]
