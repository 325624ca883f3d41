"""Converted checkpoints hold the same parameters, and no half-written one ever opens."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from tiny_checkpoints import CONFIG, llama_gguf, llama_tensors, to_bfloat16, write_folder

from jaxengine.checkpoint import convert, load_params, open_checkpoint
from jaxengine.checkpoint.export import write_safetensors
from jaxengine.checkpoint.gguf_vocabulary import read_vocabulary, write_vocabulary
from jaxengine.checkpoint.orbax_checkpoint import MARKER
from jaxengine.checkpoint.safetensors import read_safetensors
from jaxengine.models import llama
from jaxengine.models.weights import Source
from sharding import ParamSpec, make_mesh


def load(path: Path, dtype: str = "float32") -> Any:
    checkpoint = open_checkpoint(path)
    cfg = llama.Config.from_published(checkpoint.config)
    return load_params(checkpoint, llama, cfg, make_mesh(), dtype, progress=False)


def check_equal(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x).view(np.uint8), np.asarray(y).view(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published folder, sharded, with everything that should travel."""
    folder = write_folder(tmp_path_factory.mktemp("source") / "m", shards=2)
    (folder / "generation_config.json").write_text('{"temperature": 0.6}')
    (folder / "tokenizer.json").write_text('{"model": 1}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "pytorch_model.bin").write_text("never read")
    return folder


@pytest.fixture(scope="module")
def orbax(folder: Path) -> Path:
    return convert(folder, folder.parent / "orbax", progress=False)


def test_orbax_holds_the_same_parameters(folder: Path, orbax: Path) -> None:
    checkpoint = open_checkpoint(orbax)
    assert checkpoint.kind == "orbax"
    assert checkpoint.dtype == "float32"
    assert checkpoint.generation_config == {"temperature": 0.6}
    assert (checkpoint.path / "chat_template.jinja").read_text() == "{{ messages }}"
    assert not (checkpoint.path / "pytorch_model.bin").exists()
    check_equal(load(orbax), load(folder))
    check_equal(load(orbax, "bfloat16"), load(folder, "bfloat16"))


def test_huggingface_holds_the_same_tensors(folder: Path, orbax: Path, tmp_path: Path) -> None:
    """From published tensors, and from an Orbax checkpoint back."""
    for source in (folder, orbax):
        out = convert(source, tmp_path / f"from_{source.name}", format="huggingface", progress=False)
        checkpoint = open_checkpoint(out)
        assert CONFIG.items() <= checkpoint.config.items()
        assert (out / "tokenizer.json").is_file()
        file = read_safetensors(out / "model.safetensors")
        for name, array in llama_tensors().items():
            np.testing.assert_array_equal(file.array(name), array)
        assert set(file.tensors) == set(llama_tensors())


def test_dtype_of_what_is_written(folder: Path, tmp_path: Path) -> None:
    published = open_checkpoint(convert(folder, tmp_path / "a", "huggingface", "bfloat16", progress=False))
    assert published.dtype == published.config["dtype"] == "bfloat16"
    for name, array in to_bfloat16(llama_tensors()).items():
        found = published.read(name)
        assert found.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(found.view(np.uint16), array.view(np.uint16))
    fused = open_checkpoint(convert(folder, tmp_path / "b", "orbax", "float16", progress=False))
    assert fused.dtype == "float16"
    check_equal(load(fused.path, "float16"), load(folder, "float16"))


@pytest.mark.parametrize("format", ["orbax", "huggingface"])
def test_a_gguf_vocabulary_travels(format: str, tmp_path: Path) -> None:
    source = open_checkpoint(llama_gguf(tmp_path / "m.gguf"))
    converted = open_checkpoint(convert(source.path, tmp_path / "out", format, progress=False))
    kept = {key: value for key, value in source.metadata.items() if key.startswith(("tokenizer.", "general.arch"))}
    assert converted.metadata == kept
    check_equal(load(converted.path), load(source.path))


def test_numeric_arrays_of_a_vocabulary_stay_arrays(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.scores": np.asarray([0.5, -1.0], np.float32), "tokenizer.ggml.merges": ["a b"], "x": 1}
    write_vocabulary(metadata, tmp_path)
    read = read_vocabulary(tmp_path)
    assert read["tokenizer.ggml.merges"] == ["a b"]
    assert isinstance(read["tokenizer.ggml.scores"], np.ndarray)
    assert read["tokenizer.ggml.scores"].tolist() == [0.5, -1.0]
    assert "x" not in read
    (tmp_path / "gguf_tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"gguf_tokenizer.json is not valid JSON"):
        read_vocabulary(tmp_path)


def test_large_models_are_written_in_shards(folder: Path, tmp_path: Path) -> None:
    params = load(folder)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(params, llama, llama.Config.from_published(CONFIG), "float32", tmp_path, shard_bytes=20_000)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 3
    check_equal(load(tmp_path), params)


def test_subtract_one(tmp_path: Path) -> None:
    """A norm of 1 + w is published as w."""
    family = SimpleNamespace(
        param_specs=lambda cfg: {"norm": ParamSpec((3,), ("embed",), dtype="float32")},
        name_map=lambda cfg: {"norm": Source(("w",), add_one=True)},
    )
    w = np.asarray([0.001, -0.5, 2], ml_dtypes.bfloat16)
    write_safetensors({"norm": jax.numpy.asarray(w.astype(np.float32) + 1)}, family, None, "bfloat16", tmp_path)
    np.testing.assert_array_equal(read_safetensors(tmp_path / "model.safetensors").array("w"), w)


def test_a_place_that_is_taken_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("")
    with pytest.raises(ValueError, match="exists already"):
        convert(folder, tmp_path / "out", progress=False)
    with pytest.raises(ValueError, match=r"format='gguf' is not supported; known: orbax, huggingface"):
        convert(folder, tmp_path / "new", format="gguf", progress=False)
    with pytest.raises(ValueError, match=r"dtype='int4' is not supported; known: auto"):
        convert(folder, tmp_path / "new", dtype="int4", progress=False)
    (tmp_path / "empty").mkdir()
    assert convert(folder, tmp_path / "empty", format="huggingface", progress=False).is_dir()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, OSError])
def test_an_interrupted_conversion_leaves_nothing(
    interrupt: type[BaseException], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(params: Any, dtype: str, out: Path) -> None:
        (out / "half").write_text("")
        raise interrupt

    monkeypatch.setattr("jaxengine.checkpoint.conversion.write_orbax", write)
    with pytest.raises(interrupt):
        convert(folder, tmp_path / "out", progress=False)
    assert list(tmp_path.iterdir()) == []


def copy_of(orbax: Path, tmp_path: Path) -> Path:
    for path in orbax.rglob("*"):
        if path.is_file():
            target = tmp_path / "copy" / path.relative_to(orbax)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path / "copy"


@pytest.mark.parametrize(("change", "message"), [
    ({"version": 2}, r"version=2, known: 1; convert again"),
    ({"parameters": 3}, r"parameters must map each parameter to its shape"),
    ({"dtype": "int4"}, r"dtype='int4' is not supported"),
])  # fmt: skip
def test_a_damaged_marker_is_named(change: dict[str, Any], message: str, orbax: Path, tmp_path: Path) -> None:
    copy = copy_of(orbax, tmp_path)
    (copy / MARKER).write_text(json.dumps(json.loads((copy / MARKER).read_text()) | change))
    with pytest.raises(ValueError, match=message):
        open_checkpoint(copy)


def test_an_orbax_checkpoint_must_fit_its_config(orbax: Path, tmp_path: Path) -> None:
    copy = copy_of(orbax, tmp_path)
    for change, message in (
        ({"vocab_size": 50}, r"parameter embed must have shape \[50, 32\] by the config, found \[48, 32\]"),
        ({"num_hidden_layers": 1}, r"parameters layers.1.attn_norm, .* differ; convert again"),
    ):
        (copy / "config.json").write_text(json.dumps(CONFIG | change))
        with pytest.raises(ValueError, match=message):
            load(copy)


LOAD = """
import sys
from jaxengine.checkpoint import load_params, open_checkpoint
from jaxengine.models import llama
from sharding import make_mesh
checkpoint = open_checkpoint(sys.argv[1])
cfg = llama.Config.from_published(checkpoint.config)
try:
    load_params(checkpoint, llama, cfg, make_mesh(), "float32", progress=False)
except ValueError as error:
    print(error)
"""


def test_a_damaged_orbax_checkpoint_is_named(orbax: Path, tmp_path: Path) -> None:
    """In a process of its own: Orbax abandons the reads that were under way, and they complain much later."""
    copy = copy_of(orbax, tmp_path)
    data = max((path for path in (copy / "params").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[:1000])
    said = subprocess.run([sys.executable, "-c", LOAD, copy], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"{copy}: the parameters could not be read")
