"""Hugging Face folders: one file or several, and what is refused when they are opened."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_checkpoints import CONFIG, llama_tensors, safetensors_bytes, to_bfloat16, write_folder

from jaxengine.checkpoint import open_checkpoint
from jaxengine.checkpoint.huggingface import INDEX


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_read_under_their_names(shards: int, tmp_path: Path) -> None:
    tensors = llama_tensors()
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", shards=shards))
    assert checkpoint.kind == "huggingface"
    assert set(checkpoint.names()) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name), array)


def test_config_dtype_and_generation_defaults(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", CONFIG | {"torch_dtype": "float16"})
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    checkpoint = open_checkpoint(folder)
    assert checkpoint.dtype == "float16"
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    assert checkpoint.metadata == {}


def test_dtype_comes_from_the_tensors_where_the_config_has_none(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "torch_dtype"}
    folder = write_folder(tmp_path / "m", config, to_bfloat16(llama_tensors()))
    assert open_checkpoint(folder).dtype == "bfloat16"


def test_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert open_checkpoint(folder).kind == "huggingface"


@pytest.mark.parametrize(("change", "message"), [
    ({"quantization_config": {"quant_method": "awq"}}, "quantised .awq., which is not supported"),
    ({"hidden_size": "32"}, "hidden_size='32' must be a whole number"),
    ({"hidden_size": True}, "hidden_size=True must be a whole number"),
    ({"vocab_size": -1}, "vocab_size=-1 must be a whole number"),
    ({"vocab_size": 2**60}, "vocab_size=1152921504606846976 must be"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000, but there are only 21 tensors"),
    ({"architectures": "LlamaForCausalLM"}, "architectures='LlamaForCausalLM' must be a list"),
    ({"torch_dtype": "int8"}, "dtype='int8' is not supported; known: float32"),
])  # fmt: skip
def test_configs_that_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", CONFIG | change)
    with pytest.raises(ValueError, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize(("text", "message"), [
    ("{", "config.json is not valid JSON"),
    ("[]", "config.json must hold a JSON object, found list"),
    ("[" * 200_000, "config.json is not valid JSON"),
])  # fmt: skip
def test_a_damaged_config_is_named(text: str, message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        open_checkpoint(folder)


def broken_index(folder: Path, **changes: str) -> Path:
    """A sharded folder whose index places some tensors elsewhere."""
    write_folder(folder, shards=2)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= changes
    (folder / INDEX).write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/x.safetensors", "a\\..\\x.safetensors", "..", "x.bin"])
def test_an_index_cannot_point_out_of_its_folder(shard: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(safetensors_bytes(llama_tensors()))
    with pytest.raises(ValueError, match=r"must be a \.safetensors file of this folder"):
        open_checkpoint(broken_index(tmp_path / "m", **{"model.norm.weight": shard}))


def test_an_index_must_agree_with_its_shards(tmp_path: Path) -> None:
    first = "model-00001-of-00002.safetensors"
    with pytest.raises(ValueError, match=r"names 'gone.safetensors', which is not in the folder"):
        open_checkpoint(broken_index(tmp_path / "a", **{"model.norm.weight": "gone.safetensors"}))
    with pytest.raises(ValueError, match=r"places 'extra' in .*, which does not hold it"):
        open_checkpoint(broken_index(tmp_path / "b", extra=first))
    folder = write_folder(tmp_path / "c", shards=2)
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"]["model.norm.weight"]
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"holds 'model.norm.weight', which the index does not place there"):
        open_checkpoint(folder)
    (folder / INDEX).write_text('{"weight_map": [1]}')
    with pytest.raises(ValueError, match="weight_map must map each tensor to a file name"):
        open_checkpoint(folder)


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"it has no config.json.*it has no jaxengine_checkpoint.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(ValueError, match=r"to open a GGUF file, name it: .*model.gguf"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"none; .bin and .pt files are not read"):
        open_checkpoint(tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(safetensors_bytes({}))
    with pytest.raises(ValueError, match=r"2 of them and no model\.safetensors\.index\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("model", ["nonsense", "./missing", "/missing/folder", "missing.gguf", "org/missing.gguf", ""])
def test_a_name_that_is_nothing_lists_what_is_accepted(model: str) -> None:
    with pytest.raises(ValueError, match=r"smollm2-135m-instruct.*folder.*\.gguf file.*hub id"):
        open_checkpoint(model)


def test_a_lone_safetensors_file_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    with pytest.raises(ValueError, match="name the folder"):
        open_checkpoint(folder / "model.safetensors")
