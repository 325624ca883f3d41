"""Writers of tiny checkpoints: a random Llama as a safetensors folder or a GGUF file, and files with anything wrong."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 48, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}
LAYER_SHAPES = {
    "input_layernorm": (32,), "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32), "post_attention_layernorm": (32,),
    "mlp.gate_proj": (64, 32), "mlp.up_proj": (64, 32), "mlp.down_proj": (32, 64),
}
GGUF_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
WORDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int32": "I32"}


def llama_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors of CONFIG's model under their published names."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (48, 32), "model.norm.weight": (32,), "lm_head.weight": (48, 32),
    }
    for i in range(2):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in LAYER_SHAPES.items()}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def safetensors_bytes(tensors: dict[str, np.ndarray]) -> bytes:
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).view(np.uint8).tobytes()
        header[name] = {
            "dtype": WORDS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    return raw_safetensors(header, body)


def raw_safetensors(header: Any, body: bytes, length: int | None = None) -> bytes:
    """A file of any header, right or wrong; a str is written as it is."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def write_folder(
    folder: Path, config: dict[str, Any] | None = None, tensors: dict[str, np.ndarray] | None = None, shards: int = 1
) -> Path:
    """A Hugging Face folder; more than one shard gets an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    tensors = llama_tensors() if tensors is None else tensors
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
        return folder
    weight_map = {}
    for i in range(shards):
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[i::shards])
        (folder / name).write_bytes(safetensors_bytes(part))
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def interleave(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows as llama-arch GGUF files keep q and k: the two of a rotated pair side by side."""
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[-1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def llama_gguf(path: Path, tensors: dict[str, np.ndarray] | None = None, kind: str = "F32", **metadata: Any) -> Path:
    """CONFIG's model as a GGUF file; weights are quantised to `kind`. `metadata` adds or replaces entries."""
    entries: dict[str, Any] = {
        "block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    }
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (entries | metadata).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"llama.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(48)])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    for name, array in (llama_tensors() if tensors is None else tensors).items():
        add_tensor(writer, gguf_name(name), interleave(array, 8) if is_rotated(name) else array, kind)
    return finish(writer)


def is_rotated(name: str) -> bool:
    return name.endswith(("q_proj.weight", "k_proj.weight"))


def gguf_name(name: str) -> str:
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top or name == "lm_head.weight":
        return top.get(name, "output.weight")
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{GGUF_LAYER[rest.removesuffix('.weight')]}.weight"


def add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray, kind: str) -> None:
    if array.ndim == 1 or kind == "F32":
        writer.add_tensor(name, array)
        return
    quantized = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, gguf.quantize(array, quantized), raw_dtype=quantized)


def finish(writer: gguf.GGUFWriter) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(writer.path)


def to_bfloat16(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}


@contextmanager
def bounded_memory(limit: int = 8 << 20) -> Iterator[None]:
    """Fails where more than `limit` bytes were allocated at once: a size was believed that the file does not have."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()
