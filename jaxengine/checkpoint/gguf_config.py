"""GGUF metadata -> the config.json that the same model is published with."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxengine.checkpoint.gguf import GGUFFile

# The divisors of rope frequencies, kept where published configs have `rope_scaling`.
ROPE_TABLE = "rope_freqs.weight"
_SCALING_KEYS = ("type", "factor", "original_context_length", "finetuned")


class _Metadata:
    """Metadata of one architecture: `get("block_count")` reads "llama.block_count"."""

    def __init__(self, file: GGUFFile) -> None:
        self.file, self.all = file, file.metadata
        self.arch = self.all.get("general.architecture")

    def get(self, key: str, default: Any = None) -> Any:
        value = self.all.get(f"{self.arch}.{key}", default)
        if isinstance(value, np.ndarray):       # per-layer counts; fine where all layers agree
            if value.size == 0 or (value != value[0]).any():
                raise self.fail(f"{self.arch}.{key} differs between layers, which is not supported")
            return value[0].item()
        # Files hold float32: 1e-05 would read 9.999999747378752e-06.
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise self.fail(f"the metadata has no {self.arch}.{key}")
        return value

    def fail(self, what: str) -> ValueError:
        return ValueError(f"{self.file.path}: {what}")


def published_config(file: GGUFFile) -> dict[str, Any]:
    """The Hugging Face config of a GGUF file. Raises ValueError naming what is unknown or missing."""
    meta = _Metadata(file)
    if meta.arch not in _BUILDERS:
        raise meta.fail(f"GGUF architecture {meta.arch!r} is not supported; known: {', '.join(_BUILDERS)}")
    if meta.get("expert_count"):
        raise meta.fail(f"{meta.arch}.expert_count is set: mixtures of experts are not supported in GGUF")
    return _common(meta) | _BUILDERS[meta.arch](meta)


def _common(meta: _Metadata) -> dict[str, Any]:
    hidden, heads = meta.need("embedding_length"), meta.need("attention.head_count")
    if not all(isinstance(n, int) and n > 0 for n in (hidden, heads)):
        raise meta.fail(f"embedding_length={hidden} and attention.head_count={heads} must be at least 1")
    head_dim = meta.get("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if meta.get(key, head_dim) != head_dim:
            raise meta.fail(f"{meta.arch}.{key}={meta.get(key)} must equal the head width {head_dim}")
    return {
        "vocab_size": _vocab_size(meta),
        "hidden_size": hidden,
        "intermediate_size": meta.need("feed_forward_length"),
        "num_hidden_layers": meta.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": meta.need("context_length"),
        "rms_norm_eps": meta.need("attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.get("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(meta, head_dim),
        "tie_word_embeddings": "output.weight" not in meta.file.tensors,
        "bos_token_id": meta.all.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.all.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.all.get("tokenizer.ggml.padding_token_id"),
    }


def _vocab_size(meta: _Metadata) -> int:
    """Rows of the embedding: the vocabulary's own length may be shorter where rows are padded."""
    table = meta.file.tensors.get("token_embd.weight")
    if table is None:
        raise meta.fail("the file has no tensor token_embd.weight: it holds no whole model")
    tokens = meta.all.get("tokenizer.ggml.tokens", ())
    if len(tokens) > table.shape[0]:
        raise meta.fail(f"the vocabulary has {len(tokens)} tokens, token_embd.weight {table.shape[0]} rows")
    return table.shape[0]


def _rope_scaling(meta: _Metadata, head_dim: int) -> dict[str, Any] | None:
    if ROPE_TABLE in meta.file.tensors:
        return _llama3_scaling(meta, head_dim)
    prefix = f"{meta.arch}.rope.scaling."
    if unknown := [key for key in meta.all if key.startswith(prefix) and key.removeprefix(prefix) not in _SCALING_KEYS]:
        raise meta.fail(f"{unknown[0]} is not supported")
    kind = meta.get("rope.scaling.type", "none")
    factor = meta.get("rope.scaling.factor", meta.get("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    scaling = {"rope_type": kind, "factor": factor}
    original = meta.get("rope.scaling.original_context_length")
    return scaling | ({} if original is None else {"original_max_position_embeddings": original})


def _llama3_scaling(meta: _Metadata, head_dim: int) -> dict[str, Any]:
    """Llama 3.1's scaling from the table of divisors that GGUF keeps in its place.

    The release has one setting but for `factor`, which is the largest divisor; the whole table is checked.
    """
    tensor = meta.file.tensors[ROPE_TABLE]
    if tensor.type != "F32" or tensor.shape != (head_dim // 2,):
        raise meta.fail(f"{ROPE_TABLE} is {tensor.type}{list(tensor.shape)}, expected F32[{head_dim // 2}]")
    table = meta.file.raw(tensor).view("<f4")
    factor, low, high, original = float(table.max()), 1.0, 4.0, 8192
    frequency = meta.get("rope.freq_base", 10000.0) ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = original * frequency / (2 * math.pi)          # in the original context
    blend = np.clip((turns - low) / (high - low), 0, 1)
    if not np.allclose(table, 1 / ((1 - blend) / factor + blend), rtol=1e-3):
        raise meta.fail(f"{ROPE_TABLE} is not Llama 3.1's rope scaling, and no other table is supported")
    return {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _llama(meta: _Metadata) -> dict[str, Any]:
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}


def _smollm3(meta: _Metadata) -> dict[str, Any]:
    layers = meta.need("block_count")
    return {
        "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "hidden_act": "silu",
        "no_rope_layer_interval": 4,
        "no_rope_layers": [int((i + 1) % 4 != 0) for i in range(_sane(meta, layers))],
    }


def _qwen(version: int) -> Callable[[_Metadata], dict[str, Any]]:
    return lambda meta: {
        "architectures": [f"Qwen{version}ForCausalLM"], "model_type": f"qwen{version}", "hidden_act": "silu",
    }


def _gemma2(meta: _Metadata) -> dict[str, Any]:
    layers = _sane(meta, meta.need("block_count"))
    return {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": meta.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": meta.get("final_logit_softcapping", 30.0),
        "sliding_window": meta.get("attention.sliding_window", 4096),
        "layer_types": _layer_types(layers, 2),
        "query_pre_attn_scalar": _query_scalar(meta, 46),
    }


def _gemma3(meta: _Metadata) -> dict[str, Any]:
    layers = _sane(meta, meta.need("block_count"))
    return {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": meta.get("rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": 10000.0,
        "sliding_window": meta.need("attention.sliding_window"),
        "sliding_window_pattern": 6,
        "layer_types": _layer_types(layers, 6),
        "query_pre_attn_scalar": _query_scalar(meta, 62),
    }


def _query_scalar(meta: _Metadata, layers_of_27b: int) -> int:
    """Not in the files: the head width, but for the 27B release of each generation, known by its depth."""
    hidden, heads = meta.need("embedding_length"), meta.need("attention.head_count")
    if meta.need("block_count") == layers_of_27b:
        return hidden // heads
    return meta.get("attention.key_length", hidden // heads)


def _layer_types(layers: int, period: int) -> list[str]:
    """The last of every `period` layers attends to everything."""
    return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]


def _sane(meta: _Metadata, layers: Any) -> int:
    if not isinstance(layers, int) or not 0 < layers <= len(meta.file.tensors):
        raise meta.fail(f"{meta.arch}.block_count={layers} for {len(meta.file.tensors)} tensors")
    return layers


_BUILDERS: dict[str, Callable[[_Metadata], dict[str, Any]]] = {
    "llama": _llama, "smollm3": _smollm3, "qwen2": _qwen(2), "qwen3": _qwen(3),
    "gemma2": _gemma2, "gemma3": _gemma3,
}
