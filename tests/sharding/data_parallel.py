"""Run by test_data_parallel.py in a process of its own: everything an engine can do, on several shards and on one.

Prints one JSON line per mesh.
"""

import json
import os
import random
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).parent))

import jax
from tiny_engines import VOCAB, engine, published, run, tokens

from jaxengine.bench.collectives import collectives
from jaxengine.engine.engine import Engine
from jaxengine.types import RequestOutput, SamplingParams

jax.config.update("jax_numpy_rank_promotion", "raise")
POOL = {"num_blocks": 17, "max_num_batched_tokens": 48}      # of 64 tokens a shard: too small for what runs


def workload(seed: int, count: int = 24) -> list[tuple[list[int], SamplingParams]]:
    """Requests of every kind; few distinct beginnings, so that prefixes are often shared."""
    r = random.Random(seed)
    stems = [[r.randrange(VOCAB) for _ in range(12)] for _ in range(3)]
    kinds = [
        {"frequency_penalty": 2.0}, {"temperature": 0.0}, {"n": 3, "repetition_penalty": 2.0},
        {"temperature": 0.0, "prompt_logprobs": 3}, {"repetition_penalty": 2.0, "frequency_penalty": 1.0},
        {"presence_penalty": 2.0, "n": 2}, {"logprobs": 4, "top_k": 20},
        {"logit_bias": {5: 3.0}, "top_p": 0.8, "presence_penalty": 2.0},
        {"allowed_token_ids": list(range(0, VOCAB, 5))}, {"min_tokens": 6, "stop_token_ids": list(range(30))},
        {"max_tokens": 0, "prompt_logprobs": 0}, {"min_p": 0.1, "temperature": 0.0, "frequency_penalty": 2.0},
    ]
    requests = []
    for i in range(count):
        prompt = r.choice(stems)[: r.choice([4, 8, 12])] + [r.randrange(VOCAB) for _ in range(r.randint(1, 14))]
        options = {"max_tokens": r.randint(3, 20), "ignore_eos": True, "seed": i} | kinds[i % len(kinds)]
        requests.append((prompt, SamplingParams(**options)))
    return requests


def logprobs(outputs: list[RequestOutput]) -> list[float]:
    """Those of chosen tokens, of prompts and outputs."""
    found = []
    for output in outputs:
        for token_id, entry in zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=False):
            found += [] if entry is None else [entry[token_id].logprob]
        for completion in output.outputs:
            found += [e[t].logprob for t, e in zip(completion.token_ids, completion.logprobs or [], strict=False)]
    return found


def again(made: Engine) -> list[int]:
    """Prompt tokens that were cached when a prompt came a second time while the other shard was idle, too."""
    prompt, params = list(range(20)), SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    return [run(made, [(prompt, params)])[0].num_cached_tokens for _ in range(2)]


def aborted(made: Engine) -> bool:
    """Aborts half of the requests in the middle; the others are not touched."""
    requests = workload(7, 10)
    whole = tokens(run(made, requests))
    ids = [made.add_request(prompt, params, output_kind="final_only") for prompt, params in requests]
    for _ in range(4):
        made.step()
    done = {request_id: made.abort(request_id) for request_id in ids[::2]}
    while made.has_unfinished:
        done |= {output.request_id: output for output in made.step() if output.finished}
    made.blocks.check(())
    return all(tokens([done[ids[i]]])[0] == whole[i] for i in range(1, 10, 2))


def examine(data: int, tensor: int, expected: list | None) -> list[RequestOutput]:
    made = engine(published("llama"), data, tensor, **POOL)
    copies, admitted = 0, set()
    step = made.scheduler.schedule

    def schedule():
        nonlocal copies
        plan = step()
        if plan is not None:
            copies += sum(len(shard.copies) for shard in plan.shards)
            admitted.update(i for i, shard in enumerate(plan.shards) if shard.rows)
        return plan

    made.scheduler.schedule = schedule
    outputs = run(made, workload(1))
    reference = outputs if expected is None else expected
    print(json.dumps({
        "data": data, "tensor": tensor, "tokens": tokens(outputs) == tokens(reference),
        "logprobs": max(abs(a - b) for a, b in zip(logprobs(outputs), logprobs(reference), strict=True)),
        "num_logprobs": len(logprobs(outputs)), "copies": copies, "shards": len(admitted),
        "preemptions": made.scheduler.num_preemptions, "hits": made.blocks.num_hit_tokens,
        "again": again(made), "aborted": aborted(made),
        "between_shards": sum(
            "data" in c.axes
            for entry in made.ledger.entries.values() if entry.compiled is not None
            for c in collectives(entry.compiled.as_text(), made.runner.mesh.shape)
        ),
    }), flush=True)
    made.runner.close()
    return outputs


expected = examine(1, 1, None)
examine(2, 1, expected)
examine(2, 2, expected)
