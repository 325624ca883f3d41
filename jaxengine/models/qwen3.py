"""Qwen3: each head's q and k are normalised before rope; no biases; optionally a sliding window as Qwen2."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from flax import struct

from jaxengine.arrays import KVLayer, KVPool, StepBatch
from jaxengine.layers.activation import ACTIVATIONS
from jaxengine.layers.attention import paged_attention, project_out, project_qkv
from jaxengine.layers.linear import embed, unembed
from jaxengine.layers.mlp import gated_mlp
from jaxengine.layers.norm import rms_norm
from jaxengine.layers.rope import Angles, RopeConfig, apply_rope, rope_angles
from jaxengine.models.published import PublishedConfig
from jaxengine.models.weights import NameMap, stack
from sharding import ParamSpec


@dataclass(frozen=True)
class Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    hidden_act: str
    rope: RopeConfig
    sliding_windows: tuple[int | None, ...]      # per layer

    @classmethod
    def from_published(cls, published: dict[str, Any]) -> "Config":
        c = PublishedConfig(published, implements=("use_sliding_window",), head_dim=128)
        return cls(
            **c.common(),
            hidden_act=c.activation("silu"),
            rope=c.rope(),
            sliding_windows=c.qwen_windows(),
        )


@struct.dataclass
class Layer:
    attn_norm: Any     # [D]
    wq: Any            # [K, G, H, D]
    wkv: Any           # [2, K, H, D]
    q_norm: Any        # [H]
    k_norm: Any        # [H]
    wo: Any            # [D, K, G, H]
    mlp_norm: Any      # [D]
    gate_up: Any       # [2, F, D]
    down: Any          # [D, F]


@struct.dataclass
class Params:
    embed: Any                   # [V, D]
    layers: tuple[Layer, ...]
    norm: Any                    # [D]
    lm_head: Any                 # [V, D], None where tied to embed


def param_specs(cfg: Config) -> Params:
    D, F, K, H = cfg.hidden_size, cfg.intermediate_size, cfg.num_kv_heads, cfg.head_dim
    G = cfg.num_heads // K
    norm = ParamSpec((D,), ("embed",), init="ones", dtype="float32")
    head_norm = ParamSpec((H,), ("head",), init="ones", dtype="float32")
    layer = Layer(
        attn_norm=norm,
        wq=ParamSpec((K, G, H, D), ("kv_heads", "q_group", "head", "embed")),
        wkv=ParamSpec((2, K, H, D), (None, "kv_heads", "head", "embed")),
        q_norm=head_norm,
        k_norm=head_norm,
        wo=ParamSpec((D, K, G, H), ("embed", "kv_heads", "q_group", "head")),
        mlp_norm=norm,
        gate_up=ParamSpec((2, F, D), (None, "ffn", "embed")),
        down=ParamSpec((D, F), ("embed", "ffn")),
    )
    table = ParamSpec((cfg.vocab_size, D), ("vocab", "embed"))
    return Params(
        embed=table, layers=(layer,) * cfg.num_layers, norm=norm, lm_head=None if cfg.tie_word_embeddings else table
    )


def name_map(cfg: Config) -> NameMap:
    """Parameter path -> the published tensors that make it."""
    names: NameMap = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}
    if not cfg.tie_word_embeddings:
        names["lm_head"] = "lm_head.weight"
    for i in range(cfg.num_layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        names |= {
            f"{ours}.attn_norm": f"{theirs}.input_layernorm.weight",
            f"{ours}.wq": f"{theirs}.self_attn.q_proj.weight",
            f"{ours}.wkv": stack(f"{theirs}.self_attn.k_proj.weight", f"{theirs}.self_attn.v_proj.weight"),
            f"{ours}.q_norm": f"{theirs}.self_attn.q_norm.weight",
            f"{ours}.k_norm": f"{theirs}.self_attn.k_norm.weight",
            f"{ours}.wo": f"{theirs}.self_attn.o_proj.weight",
            f"{ours}.mlp_norm": f"{theirs}.post_attention_layernorm.weight",
            f"{ours}.gate_up": stack(f"{theirs}.mlp.gate_proj.weight", f"{theirs}.mlp.up_proj.weight"),
            f"{ours}.down": f"{theirs}.mlp.down_proj.weight",
        }
    return names


def forward(params: Params, batch: StepBatch, pool: KVPool, cfg: Config) -> tuple[jax.Array, KVPool]:
    """Hidden states [T, D] after the final norm, and the updated pool."""
    x = embed(params.embed, batch.token_ids)
    angles = rope_angles(batch.positions, cfg.rope)
    layers = []
    for p, kv, window in zip(params.layers, pool.layers, cfg.sliding_windows, strict=True):
        x, kv = _layer(p, x, kv, angles, batch, cfg, window)
        layers.append(kv)
    return rms_norm(x, params.norm, cfg.rms_norm_eps), KVPool(tuple(layers))


@partial(jax.jit, static_argnames=("cfg", "window"))
def _layer(
    p: Layer, x: jax.Array, kv: KVLayer, angles: Angles, batch: StepBatch, cfg: Config, window: int | None
) -> tuple[jax.Array, KVLayer]:
    """One layer of x [T, D]. Jitted, so that layers of one kind are traced once, not once each."""
    q, k, v = project_qkv(rms_norm(x, p.attn_norm, cfg.rms_norm_eps), p.wq, p.wkv)
    q = apply_rope(rms_norm(q, p.q_norm, cfg.rms_norm_eps), angles)
    k = apply_rope(rms_norm(k, p.k_norm, cfg.rms_norm_eps), angles)
    out, kv = paged_attention(q, k, v, kv, batch, scale=cfg.head_dim**-0.5, sliding_window=window)
    x = x + project_out(out, p.wo)
    x = x + gated_mlp(rms_norm(x, p.mlp_norm, cfg.rms_norm_eps), p.gate_up, p.down, ACTIVATIONS[cfg.hidden_act])
    return x, kv


def compute_logits(params: Params, x: jax.Array, cfg: Config) -> jax.Array:
    """Rows x [R, D] of `forward`'s hidden states -> logits f32[R, V]."""
    return unembed(x, params.embed if params.lm_head is None else params.lm_head)
