"""The device side of the engine: weights, KV pool, per-slot state and the compiled steps over them."""

from __future__ import annotations

import atexit
import logging
import math
import weakref
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxengine.config import EngineConfig
from jaxengine.engine import compile_cache, sampler
from jaxengine.engine.ledger import CompileLedger, Key
from jaxengine.engine.memory import MemoryPlan, abstract_pool, allocate, kv_dtype_of, plan_memory
from jaxengine.engine.plan_buckets import plan_buckets
from jaxengine.engine.sampling_batch import SampleInputs
from jaxengine.engine.sampling_rows import InputPlacer
from jaxengine.engine.step import COPIES, Steps
from jaxengine.types import ShardPlan
from pallas_kernels.backend import resolve_backend
from sharding import DATA, MODEL, abstract_params, spec

_ALIVE: weakref.WeakSet[Runner] = weakref.WeakSet()


@atexit.register
def _wait_for_all() -> None:
    """A step that still runs while Python shuts down aborts the process, so a script's end waits for it."""
    for runner in list(_ALIVE):
        runner.wait()

log = logging.getLogger(__name__)


class Runner:
    """Compiles and calls the steps. Made before the weights are loaded, so that both happen at once."""

    def __init__(
        self, family: ModuleType, cfg: Any, config: EngineConfig, mesh: Mesh, dtype: Any, max_model_len: int
    ) -> None:
        self.cfg, self.config, self.mesh = cfg, config, mesh
        self.cache_folder = compile_cache.enable(config.compile.cache_dir)
        params = abstract_params(family.param_specs(cfg), dtype, mesh)
        device = mesh.devices.flat[0]
        self.backend, self.backend_reason = resolve_backend(
            config.attention_backend, platform=device.platform, head_dim=cfg.head_dim,
            block_size=config.cache.block_size, dtype=jnp.dtype(kv_dtype_of(config, dtype)), query_dtype=dtype,
            group=cfg.num_heads // cfg.num_kv_heads // mesh.shape["group"],
            compute_capability=getattr(device, "compute_capability", None),
        )
        self.memory: MemoryPlan = plan_memory(cfg, params, config, max_model_len, dtype, mesh, self.backend)
        if self.memory.pool_tokens < max_model_len:
            log.warning(
                "the KV pool holds %d tokens, fewer than max_model_len=%d: longer sequences end there (%s)",
                self.memory.pool_tokens, max_model_len, self.memory.reckoned,
            )
        self.num_shards = mesh.shape[DATA]
        self.buckets = plan_buckets(
            config, -(-max_model_len // config.cache.block_size), math.prod(mesh.shape[axis] for axis in MODEL)
        )
        self.ledger = CompileLedger(
            workers=2 if config.compile.warmup == "full" else 1,
            forbid_after_warmup=config.compile.forbid_compile_after_warmup,
        )
        self._pool_shape = abstract_pool(cfg, self.memory, mesh, self.backend)
        state = jax.eval_shape(
            lambda: sampler.init_state(config.scheduler.max_num_seqs, cfg.vocab_size, self.num_shards)
        )
        by_slot = NamedSharding(mesh, spec("slots"))
        self._state_shape = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=by_slot), state)
        self.steps = Steps(family, cfg, mesh, self.ledger, self.buckets, self.backend)
        self.steps.plan_all(params, self._pool_shape, self._state_shape)
        self._placer = InputPlacer(mesh, cfg.vocab_size)
        self.params: Any = None
        self.pool: Any = None
        self.state: Any = None
        _ALIVE.add(self)

    def start_compiling(self) -> None:
        """Starts on what the first answer needs; the rest by `warmup`."""
        b = self.buckets
        for key in (Key("mixed", b.mixed[0]), Key("decode", b.decode[0]), Key("greedy", b.greedy[0])):
            self.ledger.start(key)
        if self.config.compile.warmup != "lazy":
            self.ledger.start(Key("sample", b.sample[0]))      # next, since chats rarely are greedy
            self.ledger.finish_warmup(wait=False)

    def load(self, params: Any) -> None:
        """Takes the weights and allocates the pool; with warmup "full" returns when all is compiled."""
        self.params = params
        self.pool = allocate(self._pool_shape)
        self.state = allocate(self._state_shape)
        if self.config.compile.warmup == "full":
            self.ledger.finish_warmup(wait=True)

    def forward(self, kind: str, bucket: int, packed: np.ndarray) -> tuple[jax.Array, jax.Array | None]:
        """Dispatches a forward; returns (rows [R, D], hidden [T_max, D] of a mixed step), of each shard, without
        waiting. packed: the shards' parts one after another."""
        step = self.ledger.get(Key(kind, bucket))
        self.pool, rows, hidden = step(self.params, self.pool, self.state.last_tokens, self._put(packed, "shards"))
        return rows, hidden

    def greedy(self, rows: jax.Array, slots: np.ndarray) -> sampler.SampleResult:
        """Dispatches the greedy head on the first rows of each shard, as many as `slots` has for it: a bucket."""
        step = self.ledger.get(Key("greedy", len(slots) // self.num_shards))
        result, self.state = step(self.params, rows, self.state, self._put(slots, "tokens"))
        return _start_copy(result)

    def sample(self, rows: jax.Array, inputs: SampleInputs) -> sampler.SampleResult:
        """Dispatches the full sampler on the first rows of each shard, as many as `inputs` has for it: a bucket."""
        step = self.ledger.get(Key("sample", len(inputs.rows) // self.num_shards))
        result, self.state = step(self.params, rows, self.state, self._placer.place(inputs))
        return _start_copy(result)

    def score(
        self, hidden: jax.Array, index: np.ndarray, targets: np.ndarray, shard: int
    ) -> list[sampler.ScoreResult]:
        """Log-probabilities of `targets` int32[n] at the shard's hidden rows `index` int32[n], buckets.score a call.

        The results hold as many rows for every shard; those of `shard` count.
        """
        step, size = self.ledger.get(Key("score")), self.buckets.score
        results = []
        for at in range(0, len(index), size):
            part = np.zeros((2, self.num_shards, size), np.int32)
            n = len(index[at : at + size])
            part[0, shard, :n], part[1, shard, :n] = index[at : at + n], targets[at : at + n]
            rows, ids = self._put(part[0].ravel(), "tokens"), self._put(part[1].ravel(), "sampled")
            results.append(_start_copy(step(self.params, hidden, rows, ids)))
        return results

    def copy_blocks(self, plans: tuple[ShardPlan, ...]) -> None:
        """Copies within each shard's pool what its plan asks for."""
        for at in range(0, max(len(plan.copies) for plan in plans), COPIES):
            part = np.zeros((2, self.num_shards, COPIES), np.int32)
            for shard, plan in enumerate(plans):
                pairs = plan.copies[at : at + COPIES]
                if pairs:
                    part[:, shard, : len(pairs)] = np.array(pairs, np.int32).T
            sources, destinations = (self._put(side.ravel(), "shards") for side in part)
            self.pool = self.ledger.get(Key("copy"))(self.pool, sources, destinations)

    def reset_slot(self, slot: int, prompt: list[int], output: list[int]) -> None:
        """Restores a slot's penalty counts when a sequence takes it."""
        shard, slot = divmod(slot, self.buckets.max_num_seqs)
        inputs = sampler.reset_inputs(slot, prompt, output, self.buckets.max_tokens, shard)
        self.state = self.ledger.get(Key("reset"))(self.state, *map(self._put, inputs))

    def _put(self, x: np.ndarray, *axes: str) -> Any:
        return x if self.mesh.size == 1 else jax.device_put(x, NamedSharding(self.mesh, spec(*axes)))

    def wait(self) -> None:
        """Returns when the device has done all that was dispatched."""
        jax.block_until_ready((self.pool, self.state))

    def close(self) -> None:
        self.ledger.close()
        self.wait()
        self.params = self.pool = self.state = None


def _start_copy(result: Any) -> Any:
    for leaf in jax.tree.leaves(result):
        leaf.copy_to_host_async()
    return result
