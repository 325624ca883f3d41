"""A GGUF file as a checkpoint with Hugging Face names and row order."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

from jaxengine.checkpoint.checkpoint import TensorCheckpoint, check_config
from jaxengine.checkpoint.dequantize import check_readable, dequantize_rows, row_bytes
from jaxengine.checkpoint.gguf import GGUFFile, GGUFTensor, read_gguf
from jaxengine.checkpoint.gguf_config import ROPE_TABLE, published_config

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = _LAYER | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Their q and k rows are interleaved per head: pairs that rotate together lie side by side.
_INTERLEAVED = ("llama", "smollm3")
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True)
class GGUFCheckpoint(TensorCheckpoint):
    file: GGUFFile = field(kw_only=True, repr=False)
    tensors: dict[str, GGUFTensor] = field(kw_only=True, repr=False)      # by Hugging Face name

    def names(self) -> Iterable[str]:
        return self.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def stored_dtype(self, name: str) -> str:
        return self.tensors[name].type

    def row_multiple(self, name: str) -> int:
        return self.config["head_dim"] if self._is_interleaved(name) else 1

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        tensor = self.tensors[name]
        width, size = tensor.shape[-1], row_bytes(tensor.type, tensor.shape[-1])
        values = dequantize_rows(self.file.raw(tensor)[start * size : stop * size], tensor.type, width)
        if self._is_interleaved(name):
            pairs = values.reshape(-1, self.config["head_dim"] // 2, 2, width)
            return pairs.swapaxes(1, 2).reshape(values.shape)
        if self._holds_one_plus(name):
            return values - np.float32(1)
        return values

    def _is_interleaved(self, name: str) -> bool:
        arch = self.metadata["general.architecture"]
        return arch in _INTERLEAVED and name.endswith(("q_proj.weight", "k_proj.weight"))

    def _holds_one_plus(self, name: str) -> bool:
        """Gemma's norms: the file holds 1 + w, published checkpoints w."""
        return self.metadata["general.architecture"].startswith("gemma") and name.endswith("norm.weight")


def open_gguf(path: Path) -> GGUFCheckpoint:
    """Opens a .gguf file that holds a whole model."""
    file = read_gguf(path)
    if file.metadata.get("split.count", 1) != 1:
        raise ValueError(f"{path} is one part of a split GGUF (split.count is not 1); join the parts first")
    config = check_config(published_config(file), str(path), len(file.tensors))
    weights = {name: tensor for name, tensor in file.tensors.items() if name != ROPE_TABLE}
    tensors = {_published_name(name, file): tensor for name, tensor in weights.items()}
    if len(tensors) < len(weights):
        raise ValueError(f"{path}: two tensors stand for the same published one")
    for kind in sorted({t.type for t in tensors.values()}):
        check_readable(kind, str(path))
    checkpoint = GGUFCheckpoint(
        path, "gguf", config, _default_dtype(file), metadata=file.metadata, file=file, tensors=tensors
    )
    _check_heads(checkpoint)
    return checkpoint


def _published_name(name: str, file: GGUFFile) -> str:
    """The Hugging Face name; unknown ones keep theirs, and loading names them as left over."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    table = _GEMMA_LAYER if file.metadata["general.architecture"].startswith("gemma") else _LAYER
    match = _BLOCK_NAME.fullmatch(name)
    if match and match[2] in table:
        return f"model.layers.{match[1]}.{table[match[2]]}.{match[3]}"
    return name


def _default_dtype(file: GGUFFile) -> str:
    """The dtype that most bytes are in; quantised files run in bfloat16."""
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.nbytes
    return {"F32": "float32", "F16": "float16"}.get(max(sizes, key=lambda kind: sizes[kind]), "bfloat16")


def _check_heads(checkpoint: GGUFCheckpoint) -> None:
    for name in checkpoint.names():
        rows, multiple = prod(checkpoint.shape(name)[:-1]), checkpoint.row_multiple(name)
        if rows % multiple:
            raise ValueError(f"{checkpoint.path}: {name} has {rows} rows, no multiple of head width {multiple}")
