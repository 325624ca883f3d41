"""Loading: every parameter from the right tensors, everything checked first, memory within its bound."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tiny_checkpoints import CONFIG, bounded_memory, llama_gguf, llama_tensors, to_bfloat16, write_folder

from jaxengine.checkpoint import convert, load_params, open_checkpoint
from jaxengine.models import llama
from jaxengine.models.weights import Source
from sharding import ParamSpec, make_mesh

HERE = Path(__file__).parent


def load(path: Path, dtype: str = "float32", family: Any = llama) -> Any:
    checkpoint = open_checkpoint(path)
    return load_params(
        checkpoint, family, llama.Config.from_published(checkpoint.config), make_mesh(), dtype, progress=False
    )


def check_values(params: Any, tensors: dict[str, np.ndarray]) -> None:
    """Every parameter is its published tensors, reshaped or stacked."""
    expect = {
        "embed": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head", "layers.1.wq": "self_attn.q_proj",
        "layers.1.wo": "self_attn.o_proj", "layers.1.down": "mlp.down_proj", "layers.1.attn_norm": "input_layernorm",
        "layers.1.mlp_norm": "post_attention_layernorm", "layers.1.wkv": "self_attn.k_proj self_attn.v_proj",
        "layers.1.gate_up": "mlp.gate_proj mlp.up_proj",
    }
    for path, names in expect.items():
        prefix = "model.layers.1." if path.startswith("layers") else ""
        parameter = params.layers[1] if prefix else params
        found = np.asarray(getattr(parameter, path.split(".")[-1]), np.float32)
        parts = [tensors[f"{prefix}{name}.weight"].astype(np.float32) for name in names.split()]
        np.testing.assert_array_equal(found.ravel(), np.concatenate([part.ravel() for part in parts]), err_msg=path)


@pytest.mark.floor
@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_loads(shards: int, tmp_path: Path) -> None:
    tensors = llama_tensors()
    params = load(write_folder(tmp_path / "m", shards=shards))
    check_values(params, tensors)
    assert params.layers[0].wq.shape == (2, 2, 8, 32)
    assert params.layers[0].wkv.shape == (2, 2, 8, 32)


@pytest.mark.floor
def test_a_gguf_file_loads(tmp_path: Path) -> None:
    """The file's rotated rows come back to the published order."""
    check_values(load(llama_gguf(tmp_path / "m.gguf")), llama_tensors())


def test_dtypes_are_converted_and_norms_stay_float32(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", tensors=to_bfloat16(llama_tensors()))
    wide = load(folder)
    check_values(wide, to_bfloat16(llama_tensors()))
    narrow = load(folder, "float16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(narrow)} == {"float16", "float32"}
    assert narrow.layers[0].attn_norm.dtype == narrow.norm.dtype == jnp.float32
    expected = to_bfloat16(llama_tensors())["lm_head.weight"].astype(np.float16)
    np.testing.assert_array_equal(np.asarray(narrow.lm_head), expected)


def test_large_tensors_load_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of a few rows, in whole heads where rows are reordered, give the same as whole tensors."""
    monkeypatch.setattr("jaxengine.checkpoint.load._CHUNK_VALUES", 100)
    check_values(load(llama_gguf(tmp_path / "m.gguf")), llama_tensors())
    check_values(load(write_folder(tmp_path / "m")), llama_tensors())


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16", "BF16"])
def test_quantised_weights_load_as_the_file_reads(kind: str, tmp_path: Path) -> None:
    path = llama_gguf(tmp_path / "m.gguf", kind=kind)
    checkpoint = open_checkpoint(path)
    assert checkpoint.dtype == {"F16": "float16"}.get(kind, "bfloat16")
    read = {name: checkpoint.read(name) for name in checkpoint.names()}
    check_values(load(path), read)
    for name, exact in llama_tensors().items():
        assert np.abs(read[name].astype(np.float32) - exact).max() < {"Q4_1": 0.3, "Q8_0": 0.02}.get(kind, 0.02)


def test_a_tied_head_needs_no_tensor_and_ignores_one(tmp_path: Path) -> None:
    config, tensors = CONFIG | {"tie_word_embeddings": True}, llama_tensors()
    assert load(write_folder(tmp_path / "both", config, tensors)).lm_head is None
    del tensors["lm_head.weight"]
    assert load(write_folder(tmp_path / "one", config, tensors)).lm_head is None


def test_tables_of_older_exports_are_ignored(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    check_values(load(write_folder(tmp_path / "m", tensors=llama_tensors() | extra)), llama_tensors())


WRONG = {
    "a missing tensor": ({"model.norm.weight": None}, "lacks tensor model.norm.weight, which LlamaForCausalLM needs"),
    "a missing head": ({"lm_head.weight": None}, "lacks tensor lm_head.weight"),
    "a left-over tensor": ({"model.layers.0.x": np.ones(2, np.float32)}, "holds tensor model.layers.0.x, which"),
    "a third layer": (
        {"model.layers.2.input_layernorm.weight": np.ones(32, np.float32)}, "holds tensor model.layers.2.input_layer"
    ),
    "a transposed weight": (
        {"model.layers.1.mlp.down_proj.weight": np.ones((64, 32), np.float32)},
        r"model.layers.1.mlp.down_proj.weight must have shape \[32, 64\] by the config, found \[64, 32\]",
    ),
    "a longer vocabulary": (
        {"model.embed_tokens.weight": np.ones((50, 32), np.float32)}, r"must have shape \[48, 32\].*found \[50, 32\]"
    ),
    "a flat weight": (
        {"model.layers.0.self_attn.q_proj.weight": np.ones(1024, np.float32)}, r"\[32, 32\].*found \[1024\]"
    ),
    "whole numbers": ({"model.norm.weight": np.ones(32, np.int32)}, "model.norm.weight is stored as I32"),
}


@pytest.mark.parametrize("case", WRONG)
def test_tensors_that_do_not_fit_are_named(case: str, tmp_path: Path) -> None:
    changes, message = WRONG[case]
    tensors = {name: array for name, array in (llama_tensors() | changes).items() if array is not None}
    folder = write_folder(tmp_path / "m", tensors=tensors)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_a_config_of_absurd_sizes_allocates_nothing(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", CONFIG | {"vocab_size": 2**30, "hidden_size": 2**20})
    with bounded_memory(), pytest.raises(ValueError, match="must have shape"):
        load(folder)


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", tensors={"model.norm.weight": np.ones(32, np.float32), "x": np.ones(1)})
    with pytest.raises(ValueError, match="and 15 more"):
        load(folder)


def test_add_one(tmp_path: Path) -> None:
    """Gemma's norms: 1 + w in float32, from bfloat16 tensors too."""
    family = SimpleNamespace(
        param_specs=lambda cfg: {"norm": ParamSpec((3,), ("embed",), dtype="float32")},
        name_map=lambda cfg: {"norm": Source(("w",), add_one=True)},
    )
    values = np.asarray([0.001, -0.5, 2], ml_dtypes.bfloat16)
    folder = write_folder(tmp_path / "m", CONFIG | {"num_hidden_layers": 1}, {"w": values})
    norm = load(folder, "bfloat16", family)["norm"]
    np.testing.assert_array_equal(np.asarray(norm), values.astype(np.float32) + np.float32(1))


def run(code: str, *arguments: object) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False,
        env={"PATH": "", "HOME": str(Path.home()), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(HERE),
             "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


SHARDED = """
import sys, numpy as np, jax
from pathlib import Path
from jaxengine.checkpoint import convert, load_params, open_checkpoint
from jaxengine.models import llama
from sharding import make_mesh

def load(path, mesh):
    checkpoint = open_checkpoint(path)
    cfg = llama.Config.from_published(checkpoint.config)
    return load_params(checkpoint, llama, cfg, mesh, "float32", progress=False)

folder = Path(sys.argv[1])
convert(folder, folder / "orbax", progress=False)
whole = load(folder, make_mesh(devices=jax.devices()[:1]))
for path in (folder, folder / "orbax"):
    split = load(path, make_mesh(kv=2))
    assert split.layers[0].wkv.sharding.shard_shape((2, 2, 8, 32)) == (2, 1, 8, 32)
    assert split.embed.sharding.shard_shape((48, 32)) == (24, 32)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
        assert len(b.sharding.device_set) == 2
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
print("equal")
"""


def test_two_devices_get_their_shards(tmp_path: Path) -> None:
    """From published tensors, and from an Orbax checkpoint written on one device."""
    assert run(SHARDED, write_folder(tmp_path / "m")) == "equal\n"


# Prints how far private memory rose above where it stood before loading, and what the bound allows, in bytes.
MEMORY = """
import sys, threading, time
import jax
from jaxengine.checkpoint import load_params, open_checkpoint
from jaxengine.models import llama
from sharding import make_mesh

def private():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))

def load():
    checkpoint = open_checkpoint(sys.argv[1], progress=False)
    cfg = llama.Config.from_published(checkpoint.config)
    before, peak, done = private(), [0], threading.Event()
    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], private())
            time.sleep(0.005)
    watcher = threading.Thread(target=watch)
    watcher.start()
    params = jax.block_until_ready(load_params(checkpoint, llama, cfg, make_mesh(), "bfloat16", progress=False))
    done.set()
    watcher.join()
    leaves = jax.tree.leaves(params)
    largest = sorted(leaf.size * 4 for leaf in leaves)[-1] + 1536 * 576 * 4
    return peak[0] - before, sum(leaf.nbytes for leaf in leaves), largest

jax.device_put(1.0).block_until_ready()
if len(sys.argv) > 2:
    import orbax.checkpoint      # its code is not what is measured
print(*load())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["gguf", "orbax"])
def test_memory_stays_within_weights_and_two_tensors(kind: str, smollm2: str, tmp_path: Path) -> None:
    model = smollm2 if kind == "gguf" else convert(smollm2, tmp_path / "m", progress=False)
    rise, weights, two_tensors = map(int, run(MEMORY, model, *(["orbax"] if kind == "orbax" else [])).split())
    assert weights < rise + 2**20      # the measurement saw the weights themselves
    assert rise <= weights + two_tensors
    if kind == "gguf":      # converted in slices: not even one tensor is whole in float32
        assert rise <= weights + two_tensors // 4
