"""GGUF metadata and names -> published ones."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_checkpoints import CONFIG, finish, llama_gguf, llama_tensors

from jaxengine.checkpoint import open_checkpoint
from jaxengine.layers.rope import RopeConfig
from jaxengine.models import llama


def test_a_llama_file_has_its_published_config(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama_gguf(tmp_path / "m.gguf"))
    published = {key: value for key, value in CONFIG.items() if key != "torch_dtype"}
    assert published.items() <= checkpoint.config.items()
    assert checkpoint.config["eos_token_id"] == 2
    assert llama.Config.from_published(checkpoint.config) == llama.Config.from_published(CONFIG)
    assert checkpoint.kind == "gguf"
    assert checkpoint.dtype == "float32"
    assert checkpoint.metadata["tokenizer.ggml.tokens"][3] == "t3"
    for name, array in llama_tensors().items():
        np.testing.assert_array_equal(checkpoint.read(name), array)


def test_no_output_tensor_means_tied(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors["lm_head.weight"]
    assert open_checkpoint(llama_gguf(tmp_path / "m.gguf", tensors)).config["tie_word_embeddings"] is True


@pytest.mark.parametrize(("metadata", "message"), [
    ({"expert_count": 8}, "llama.expert_count is set"),
    ({"rope.dimension_count": 4}, "llama.rope.dimension_count=4 must equal the head width 8"),
    ({"attention.value_length": 16}, "llama.attention.value_length=16 must equal"),
    ({"attention.head_count": 0}, "attention.head_count=0 must be at least 1"),
    ({"block_count": 2_000_000_000}, "num_hidden_layers=2000000000, but there are only 21 tensors"),
    ({"attention.key_length": 5}, "rows, no multiple of head width 5"),
])  # fmt: skip
def test_metadata_that_is_refused(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        open_checkpoint(llama_gguf(tmp_path / "m.gguf", **metadata))


def write(path: Path, arch: str, entries: dict[str, Any], tensors: dict[str, np.ndarray], **plain: Any) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in ({f"{arch}.{k}": v for k, v in entries.items()} | plain).items():
        adders = {float: writer.add_float32, str: writer.add_string, list: writer.add_array, int: writer.add_uint32}
        adders[type(value)](key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    return finish(writer)


GEMMA = {
    "block_count": 6, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64,
    "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 8,
    "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 16,
}
NORMS = {
    "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}


def gemma_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"token_embd": (48, 32), "output_norm": (32,), "blk.3.attn_q": (16, 32), "blk.3.attn_k": (8, 32)}
    shapes |= {f"blk.3.{name}": (32,) for name in NORMS}
    return {f"{name}.weight": 1 + rng.random(shape, np.float32) for name, shape in shapes.items()}


def test_gemma3_names_norms_and_what_the_file_does_not_say(tmp_path: Path) -> None:
    tensors = gemma_tensors()
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", "gemma3", GEMMA | {"rope.freq_base": 1e6}, tensors))
    config = checkpoint.config
    assert config["architectures"] == ["Gemma3ForCausalLM"]
    assert config["query_pre_attn_scalar"] == config["head_dim"] == 8
    assert (config["rope_theta"], config["rope_local_base_freq"], config["sliding_window"]) == (1e6, 1e4, 16)
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
    assert config["rms_norm_eps"] == 1e-6
    assert config["tie_word_embeddings"] is True
    for theirs, published in NORMS.items():        # the file holds 1 + w
        found = checkpoint.read(f"model.layers.3.{published}.weight")
        np.testing.assert_array_equal(found, tensors[f"blk.3.{theirs}.weight"] - np.float32(1))
    np.testing.assert_array_equal(checkpoint.read("model.norm.weight"), tensors["output_norm.weight"] - np.float32(1))
    for theirs, published in {"attn_q": "q_proj", "attn_k": "k_proj"}.items():       # not interleaved, no 1 + w
        found = checkpoint.read(f"model.layers.3.self_attn.{published}.weight")
        np.testing.assert_array_equal(found, tensors[f"blk.3.{theirs}.weight"])


def test_gemma2_config(tmp_path: Path) -> None:
    entries = GEMMA | {"attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0}
    config = open_checkpoint(write(tmp_path / "m.gguf", "gemma2", entries, gemma_tensors())).config
    assert config["architectures"] == ["Gemma2ForCausalLM"]
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (40.0, 20.0)
    assert config["layer_types"] == ["sliding_attention", "full_attention"] * 3
    assert config["query_pre_attn_scalar"] == 8


def test_gemma_27b_scales_queries_by_width_over_heads(tmp_path: Path) -> None:
    tensors = gemma_tensors() | {f"blk.{i}.attn_norm.weight": np.ones(32, np.float32) for i in range(62)}
    entries = GEMMA | {"block_count": 62, "attention.key_length": 4}
    del tensors["blk.3.attn_q_norm.weight"]
    assert open_checkpoint(write(tmp_path / "m.gguf", "gemma3", entries, tensors)).config["query_pre_attn_scalar"] == 16


@pytest.mark.parametrize(("arch", "name"), [("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")])
def test_qwen_names(arch: str, name: str, tmp_path: Path) -> None:
    names = {
        "attn_q.bias": "self_attn.q_proj.bias", "attn_q_norm.weight": "self_attn.q_norm.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
    }
    tensors = gemma_tensors() | {f"blk.0.{theirs}": np.full(32, 3, np.float32) for theirs in names}
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", arch, GEMMA, tensors))
    assert checkpoint.config["architectures"] == [name]
    assert checkpoint.config["model_type"] == arch
    for published in names.values():
        assert checkpoint.read(f"model.layers.0.{published}").tolist() == [3] * 32


def test_smollm3_skips_rope_on_every_fourth_layer(tmp_path: Path) -> None:
    config = open_checkpoint(write(tmp_path / "m.gguf", "smollm3", GEMMA, gemma_tensors())).config
    assert config["no_rope_layers"] == [1, 1, 1, 0, 1, 1]
    assert llama.Config.from_published(config).layer_has_rope == (True, True, True, False, True, True)


def llama3_rope(factor: float | None) -> RopeConfig:
    """Llama 3.1's setting, from its published config; None: without scaling."""
    scaling = {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = CONFIG | {"rope_theta": 500_000.0, "rope_scaling": scaling if factor else None}
    return llama.Config.from_published(config).rope


def llama3_table(factor: float) -> np.ndarray:
    return llama3_rope(None).inverse_frequencies() / llama3_rope(factor).inverse_frequencies()


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_scaling_is_recognised(factor: float, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tensors = {"token_embd.weight": np.ones((48, 32), np.float32), "rope_freqs.weight": llama3_table(factor)}
    entries = GEMMA | {"rope.freq_base": 500_000.0, "block_count": 1}
    checkpoint = open_checkpoint(write(path, "llama", entries, tensors))
    assert "rope_freqs.weight" not in checkpoint.names()
    rope = llama.Config.from_published(checkpoint.config).rope
    assert rope == llama3_rope(factor)
    assert 1 < llama3_table(factor)[-2] < factor      # the blend is exercised too


def test_another_rope_table_is_refused(tmp_path: Path) -> None:
    table = llama3_table(8.0) * np.asarray([1, 1.1, 1, 1], np.float32)
    tensors = {"token_embd.weight": np.ones((48, 32), np.float32), "rope_freqs.weight": table}
    with pytest.raises(ValueError, match=r"rope_freqs.weight is not Llama 3.1's rope scaling"):
        open_checkpoint(write(tmp_path / "m.gguf", "llama", GEMMA | {"rope.freq_base": 500_000.0}, tensors))


def test_linear_rope_scaling(tmp_path: Path) -> None:
    entries = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    config = open_checkpoint(write(tmp_path / "m.gguf", "gemma3", GEMMA | entries, gemma_tensors())).config
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    entries = entries | {"rope.scaling.attn_factor": 2.0}
    with pytest.raises(ValueError, match=r"gemma3.rope.scaling.attn_factor is not supported"):
        open_checkpoint(write(tmp_path / "b.gguf", "gemma3", GEMMA | entries, gemma_tensors()))


def test_counts_may_be_written_per_layer_where_they_agree(tmp_path: Path) -> None:
    tensors = gemma_tensors()
    same = open_checkpoint(write(tmp_path / "a.gguf", "qwen3", GEMMA | {"feed_forward_length": [64] * 6}, tensors))
    assert same.config["intermediate_size"] == 64
    with pytest.raises(ValueError, match=r"qwen3.feed_forward_length differs between layers"):
        open_checkpoint(write(tmp_path / "b.gguf", "qwen3", GEMMA | {"feed_forward_length": [64, 32]}, tensors))


def test_files_that_are_no_model_are_refused(tmp_path: Path) -> None:
    tensors = gemma_tensors()
    with pytest.raises(ValueError, match=r"architecture 'mamba' is not supported; known: llama, smollm3, qwen2"):
        open_checkpoint(write(tmp_path / "a.gguf", "mamba", GEMMA, tensors))
    with pytest.raises(ValueError, match=r"one part of a split GGUF"):
        open_checkpoint(write(tmp_path / "b.gguf", "gemma3", GEMMA, tensors, **{"split.count": 2}))
    with pytest.raises(ValueError, match=r"no tensor token_embd.weight"):
        open_checkpoint(write(tmp_path / "c.gguf", "gemma3", GEMMA, {"x": np.ones(32, np.float32)}))
    with pytest.raises(ValueError, match=r"the vocabulary has 50 tokens, token_embd.weight 48 rows"):
        open_checkpoint(write(tmp_path / "d.gguf", "gemma3", GEMMA, tensors, **{"tokenizer.ggml.tokens": ["x"] * 50}))
    entries = {key: value for key, value in GEMMA.items() if key != "context_length"}
    with pytest.raises(ValueError, match=r"has no gemma3.context_length"):
        open_checkpoint(write(tmp_path / "e.gguf", "gemma3", entries, tensors))
    (tmp_path / "f.gguf").write_bytes((tmp_path / "a.gguf").read_bytes().replace(b"mamba", b"ma\x00ba"))
    with pytest.raises(ValueError, match="is not supported"):
        open_checkpoint(tmp_path / "f.gguf")


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tensor token_embd.weight"):
        open_checkpoint(write(tmp_path / "a.gguf", "gemma3", GEMMA, {}))
