"""Gemma 3's text models: as Gemma 2 without soft-capped scores, with q and k normalised per head, and with local
(windowed) and global layers that rotate by different thetas.

Norms multiply by 1 + w, which is added when weights are loaded.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from flax import struct

from jaxengine.arrays import KVLayer, KVPool, StepBatch
from jaxengine.layers.activation import ACTIVATIONS
from jaxengine.layers.attention import paged_attention, project_out, project_qkv
from jaxengine.layers.linear import scaled_embed, softcap, unembed
from jaxengine.layers.mlp import gated_mlp
from jaxengine.layers.norm import rms_norm
from jaxengine.layers.rope import Angles, RopeConfig, apply_rope, rope_angles
from jaxengine.models.published import FULL, WINDOWED, PublishedConfig
from jaxengine.models.weights import NameMap, one_plus, stack
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
    rope: RopeConfig                             # of global layers
    local_rope: RopeConfig                       # of layers with a window
    sliding_windows: tuple[int | None, ...]      # per layer
    attention_scale: float
    logits_softcap: float | None

    @classmethod
    def from_published(cls, published: dict[str, Any]) -> "Config":
        c = PublishedConfig(published, implements=("final_logit_softcapping",), head_dim=256)
        period = c.get("sliding_window_pattern", c.get("_sliding_window_pattern", 6))
        types = c.layer_types([WINDOWED if (i + 1) % period else FULL for i in range(c.num_layers)])
        return cls(
            **c.common(tied=True),
            hidden_act=c.activation("gelu_pytorch_tanh"),
            rope=c.rope(1000000.0, layer_type=FULL),
            local_rope=_local_rope(c),
            sliding_windows=c.windows(types, c.get("sliding_window", 4096)),
            attention_scale=c.get("query_pre_attn_scalar", 256) ** -0.5,
            logits_softcap=c.get("final_logit_softcapping"),
        )


def _local_rope(c: PublishedConfig) -> RopeConfig:
    """Older files keep one theta for local layers beside `rope_theta`, and never scale them."""
    if c.get("rope_parameters") is not None:
        return c.rope(10000.0, layer_type=WINDOWED)
    return RopeConfig(c.head_dim, c.get("rope_local_base_freq", 10000.0))


@struct.dataclass
class Layer:
    attn_norm: Any         # [D]
    wq: Any                # [K, G, H, D]
    wkv: Any               # [2, K, H, D]
    q_norm: Any            # [H]
    k_norm: Any            # [H]
    wo: Any                # [D, K, G, H]
    attn_post_norm: Any    # [D]
    mlp_norm: Any          # [D]
    gate_up: Any           # [2, F, D]
    down: Any              # [D, F]
    mlp_post_norm: Any     # [D]


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
        attn_post_norm=norm,
        mlp_norm=norm,
        gate_up=ParamSpec((2, F, D), (None, "ffn", "embed")),
        down=ParamSpec((D, F), ("embed", "ffn")),
        mlp_post_norm=norm,
    )
    table = ParamSpec((cfg.vocab_size, D), ("vocab", "embed"))
    return Params(
        embed=table, layers=(layer,) * cfg.num_layers, norm=norm, lm_head=None if cfg.tie_word_embeddings else table
    )


def name_map(cfg: Config) -> NameMap:
    """Parameter path -> the published tensors that make it."""
    names: NameMap = {"embed": "model.embed_tokens.weight", "norm": one_plus("model.norm.weight")}
    if not cfg.tie_word_embeddings:
        names["lm_head"] = "lm_head.weight"
    for i in range(cfg.num_layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        names |= {
            f"{ours}.attn_norm": one_plus(f"{theirs}.input_layernorm.weight"),
            f"{ours}.wq": f"{theirs}.self_attn.q_proj.weight",
            f"{ours}.wkv": stack(f"{theirs}.self_attn.k_proj.weight", f"{theirs}.self_attn.v_proj.weight"),
            f"{ours}.q_norm": one_plus(f"{theirs}.self_attn.q_norm.weight"),
            f"{ours}.k_norm": one_plus(f"{theirs}.self_attn.k_norm.weight"),
            f"{ours}.wo": f"{theirs}.self_attn.o_proj.weight",
            f"{ours}.attn_post_norm": one_plus(f"{theirs}.post_attention_layernorm.weight"),
            f"{ours}.mlp_norm": one_plus(f"{theirs}.pre_feedforward_layernorm.weight"),
            f"{ours}.gate_up": stack(f"{theirs}.mlp.gate_proj.weight", f"{theirs}.mlp.up_proj.weight"),
            f"{ours}.down": f"{theirs}.mlp.down_proj.weight",
            f"{ours}.mlp_post_norm": one_plus(f"{theirs}.post_feedforward_layernorm.weight"),
        }
    return names


def forward(params: Params, batch: StepBatch, pool: KVPool, cfg: Config) -> tuple[jax.Array, KVPool]:
    """Hidden states [T, D] after the final norm, and the updated pool."""
    x = scaled_embed(params.embed, batch.token_ids)
    global_angles = rope_angles(batch.positions, cfg.rope)
    local_angles = rope_angles(batch.positions, cfg.local_rope)
    layers = []
    for p, kv, window in zip(params.layers, pool.layers, cfg.sliding_windows, strict=True):
        angles = global_angles if window is None else local_angles
        x, kv = _layer(p, x, kv, angles, batch, cfg, window)
        layers.append(kv)
    return rms_norm(x, params.norm, cfg.rms_norm_eps), KVPool(tuple(layers))


@partial(jax.jit, static_argnames=("cfg", "window"))
def _layer(
    p: Layer, x: jax.Array, kv: KVLayer, angles: Angles, batch: StepBatch, cfg: Config, window: int | None
) -> tuple[jax.Array, KVLayer]:
    """One layer of x [T, D]. Jitted, so that layers of one kind are traced once, not once each."""
    eps = cfg.rms_norm_eps
    q, k, v = project_qkv(rms_norm(x, p.attn_norm, eps), p.wq, p.wkv)
    q = apply_rope(rms_norm(q, p.q_norm, eps), angles)
    k = apply_rope(rms_norm(k, p.k_norm, eps), angles)
    out, kv = paged_attention(q, k, v, kv, batch, scale=cfg.attention_scale, sliding_window=window)
    x = x + rms_norm(project_out(out, p.wo), p.attn_post_norm, eps)
    hidden = gated_mlp(rms_norm(x, p.mlp_norm, eps), p.gate_up, p.down, ACTIVATIONS[cfg.hidden_act])
    x = x + rms_norm(hidden, p.mlp_post_norm, eps)
    return x, kv


def compute_logits(params: Params, x: jax.Array, cfg: Config) -> jax.Array:
    """Rows x [R, D] of `forward`'s hidden states -> logits f32[R, V]."""
    logits = unembed(x, params.embed if params.lm_head is None else params.lm_head)
    return logits if cfg.logits_softcap is None else softcap(logits, cfg.logits_softcap)
