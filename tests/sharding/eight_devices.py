"""Run by test_eight_devices.py in a process of its own: engines on meshes of eight fake CPU devices.

Prints one JSON line per finding. The first engine of each family runs on one device, and is what the others are
compared with.
"""

import json
import os
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path

# Level 0: the machine code of tiny models need not be fast, and most of the time goes into making it.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).parent))

import jax
from tiny_engines import VOCAB, engine, published, run, tokens

from jaxengine.bench.collectives import collectives
from jaxengine.engine.engine import Engine
from jaxengine.types import RequestOutput, SamplingParams

jax.config.update("jax_numpy_rank_promotion", "raise")
MESHES = ((1, 8), (2, 4), (4, 2), (8, 1))     # data x tensor


def prompts() -> list[list[int]]:
    r = random.Random(0)
    return [[r.randrange(VOCAB) for _ in range(n)] for n in (3, 30, 1, 17, 9, 24, 5, 12, 20, 2)]


def distance(one: list[RequestOutput], other: list[RequestOutput]) -> float:
    """The largest between log-probabilities of the same token at the same place of a prompt."""
    found = [0.0]
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a.prompt_logprobs or [], b.prompt_logprobs or [], strict=True):
            if x is not None and y is not None:
                assert len(x.keys() & y.keys()) >= min(len(x), len(y)) - 1      # a near tie at the end of the top list
                found += [abs(x[token].logprob - y[token].logprob) for token in x.keys() & y.keys()]
    return max(found)


def sent(made: Engine) -> dict[str, list[dict]]:
    """Every collective of every executable that ran."""
    return {
        str(entry.key): [asdict(c) for c in collectives(entry.compiled.as_text(), made.runner.mesh.shape)]
        for entry in made.ledger.entries.values() if entry.compiled is not None
    }


def compare(name: str) -> None:
    """Greedy decoding on every mesh, and the log-probabilities of prompts, against one device."""
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    scored = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, prompt_logprobs=20)
    requests = [(p, scored if i % 4 == 1 else greedy) for i, p in enumerate(prompts())]
    alone = engine(published(name))
    expected = run(alone, requests)
    for data, tensor in MESHES:
        start = time.perf_counter()
        made = engine(published(name), data, tensor)
        outputs = run(made, requests)
        pool = made.runner.pool.layers[0].k
        print(json.dumps({
            "family": name, "data": data, "tensor": tensor, "same": tokens(outputs) == tokens(expected),
            "distance": distance(outputs, expected), "sent": sent(made), "mesh": dict(made.runner.mesh.shape),
            "pool": pool.shape, "pool_shard": pool.addressable_shards[0].data.shape,
            "seconds": round(time.perf_counter() - start, 1),
        }), flush=True)
        made.runner.close()
    alone.runner.close()


for family in sys.argv[1:]:
    compare(family)
