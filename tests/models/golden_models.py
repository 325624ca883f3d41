"""The tiny checkpoints of the goldens, loaded as any checkpoint is, and run through a paged pool."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from tiny_weights import tiny_tensor

from jaxengine.arrays import KVPool, StepBatch
from jaxengine.checkpoint import load_params
from jaxengine.checkpoint.checkpoint import TensorCheckpoint
from jaxengine.models.registry import family
from pallas_kernels.ragged_paged_attention import AttentionMetadata, KVLayer, kv_layer_spec
from sharding import spec

FOLDER = Path(__file__).parent.parent / "golden" / "models"
CASES = sorted(path.stem for path in FOLDER.glob("*.npz"))
BLOCK_SIZE, NUM_BLOCKS, NUM_SEQS = 4, 44, 4       # one sequence is always padding
MIXED_BUCKET = 64                                 # tokens; one executable serves whole prompts and chunks


class TinyCheckpoint(TensorCheckpoint):
    """Tensors made on the spot; counts how often each is read."""

    def __init__(self, name: str, config: dict[str, Any], shapes: dict[str, list[int]]) -> None:
        super().__init__(Path(name), "tiny", config, "float32")
        object.__setattr__(self, "shapes", {k: tuple(v) for k, v in shapes.items()})
        object.__setattr__(self, "reads", Counter())

    def names(self) -> Iterable[str]:
        return self.shapes

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def stored_dtype(self, name: str) -> str:
        return "F32"

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        shape = self.shape(name)
        self.reads[name] += stop - start
        tensor = tiny_tensor(name, shape, norms_near_zero=self.config["model_type"].startswith("gemma"))
        return tensor.reshape(prod(shape[:-1]), shape[-1])[start:stop]


@dataclass
class Golden:
    """One golden: the model and what transformers says of it."""

    name: str
    published: dict[str, Any]          # config with rope_theta and rope_scaling
    saved: dict[str, Any]              # the same model's config as transformers 5 writes it
    checkpoint: TinyCheckpoint
    prompts: list[np.ndarray]          # int32[n] each
    logits: list[np.ndarray]           # float32[n, V] each
    module: ModuleType = field(init=False)
    cfg: Any = field(init=False)

    def __post_init__(self) -> None:
        self.module = family(self.published)
        self.cfg = self.module.Config.from_published(self.published)


def golden_model(name: str) -> Golden:
    with np.load(FOLDER / f"{name}.npz") as arrays:
        about = json.loads(str(arrays["about"]))
        count = sum(key.startswith("ids_") for key in arrays)
        return Golden(
            name, about["published"], about["saved"],
            TinyCheckpoint(name, about["published"], about["shapes"]),
            [arrays[f"ids_{i}"] for i in range(count)], [arrays[f"logits_{i}"] for i in range(count)],
        )


@dataclass(frozen=True)
class Rows:
    """Tokens [start, start + count) of prompt number `prompt`, computed in one step."""

    prompt: int
    start: int
    count: int


class PagedModel:
    """A model, its pool and block tables in shuffled order. Every token's logits are kept."""

    def __init__(self, golden: Golden, mesh: Mesh, dtype: Any = jnp.float32, backend: str = "reference") -> None:
        self.golden, self.mesh, self.backend = golden, mesh, backend
        with jax.set_mesh(mesh):
            self.params = load_params(golden.checkpoint, golden.module, golden.cfg, mesh, dtype, progress=False)
            self.pool = make_pool(golden.cfg, mesh, dtype)
        blocks = np.random.default_rng(0).permutation(np.arange(1, NUM_BLOCKS))
        self.tables = blocks[: NUM_SEQS * 10].reshape(NUM_SEQS, 10).astype(np.int32)
        self.logits = [np.full(want.shape, np.nan, np.float32) for want in golden.logits]
        self._step = jax.jit(partial(_step, golden.module, golden.cfg), donate_argnums=2)

    def run(self, rows: list[Rows], decode: bool = False) -> None:
        """One step; single tokens go first, as the engine orders them."""
        bucket = NUM_SEQS if decode else MIXED_BUCKET
        rows = sorted(rows, key=lambda row: row.count != 1)
        with jax.set_mesh(self.mesh):
            logits, self.pool = self._step(self.params, self._batch(rows, bucket, decode), self.pool)
        logits = np.asarray(logits)
        at = 0
        for row in rows:
            self.logits[row.prompt][row.start : row.start + row.count] = logits[at : at + row.count]
            at += row.count

    def _batch(self, rows: list[Rows], bucket: int, decode: bool) -> StepBatch:
        ids, positions, slots = np.zeros((3, bucket), np.int32)
        kv_lens, tables = np.zeros(NUM_SEQS, np.int32), np.zeros_like(self.tables)
        ends = np.cumsum([row.count for row in rows])
        for i, (row, end) in enumerate(zip(rows, ends, strict=True)):
            here, there = slice(end - row.count, end), np.arange(row.start, row.start + row.count)
            ids[here], positions[here] = self.golden.prompts[row.prompt][there], there
            tables[i] = self.tables[row.prompt]
            slots[here] = tables[i][there // BLOCK_SIZE] * BLOCK_SIZE + there % BLOCK_SIZE
            kv_lens[i] = there[-1] + 1
        cu_q_lens = np.full(NUM_SEQS + 1, ends[-1], np.int32)
        cu_q_lens[: len(rows)] = ends - [row.count for row in rows]
        if decode:      # as the engine's decode step: one token a sequence, padding included
            cu_q_lens = np.arange(NUM_SEQS + 1, dtype=np.int32)
        num_decodes = np.array([sum(row.count == 1 for row in rows)], np.int32)
        arrays = jax.device_put(
            (ids, positions, slots, tables, kv_lens, cu_q_lens, num_decodes), NamedSharding(self.mesh, spec("tokens"))
        )
        return StepBatch(
            arrays[0], arrays[1], AttentionMetadata(*arrays[2:]),
            max_q_len=1 if decode else None, attention_backend=self.backend,
        )


def make_pool(cfg: Any, mesh: Mesh, dtype: Any) -> KVPool:
    layout = kv_layer_spec(NUM_BLOCKS, BLOCK_SIZE, cfg.num_kv_heads, cfg.head_dim, dtype)

    def layer() -> KVLayer:
        return KVLayer(**{
            name: jax.device_put(jnp.zeros(shape, kind), NamedSharding(mesh, spec(*axes)))
            for name, (shape, kind, axes) in layout.items()
        })

    return KVPool(tuple(layer() for _ in range(cfg.num_layers)))


def _step(module: ModuleType, cfg: Any, params: Any, batch: StepBatch, pool: KVPool) -> tuple[jax.Array, KVPool]:
    hidden, pool = module.forward(params, batch, pool, cfg)
    return module.compute_logits(params, hidden, cfg), pool


def run_whole(model: PagedModel) -> None:
    """Every prompt in one step."""
    model.run([Rows(i, 0, len(ids)) for i, ids in enumerate(model.golden.prompts)])


def run_chunked(model: PagedModel) -> None:
    """Chunks of many sizes, decodes among them, until every prompt is through."""
    done = [0] * len(model.golden.prompts)
    step = 0
    while any(d < len(ids) for d, ids in zip(done, model.golden.prompts, strict=True)):
        rows = []
        for i, ids in enumerate(model.golden.prompts):
            count = min((5, 1, 7, 2, 8)[(step + i) % 5], len(ids) - done[i])
            if count:
                rows.append(Rows(i, done[i], count))
                done[i] += count
        model.run(rows)
        step += 1


def run_decode(model: PagedModel) -> None:
    """A chunk of at most five tokens of each prompt, then one token at a time."""
    prompts = model.golden.prompts
    model.run([Rows(i, 0, min(5, len(ids))) for i, ids in enumerate(prompts)])
    for position in range(5, max(len(ids) for ids in prompts)):
        live = [Rows(i, position, 1) for i, ids in enumerate(prompts) if position < len(ids)]
        model.run(live, decode=True)


def difference(model: PagedModel) -> float:
    """Largest distance of any logit of any token from the golden one."""
    return max(
        float(np.abs(got - want).max()) for got, want in zip(model.logits, model.golden.logits, strict=True)
    )
