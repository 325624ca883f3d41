"""Run by test_loading.py: weights from disk to eight fake CPU devices.

loading.py write FOLDER writes a checkpoint in both forms; loading.py read FOLDER FORM DATA KV GROUP loads one onto
a mesh, and prints what it took, in a process of its own since memory that was freed is used again.
"""

import json
import os
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "checkpoint"))

import jax
import numpy as np
import orbax.checkpoint  # noqa: F401 -- its code is not what is measured
from jax.sharding import Mesh
from tiny_checkpoints import write_folder
from tiny_engines import checkpoint, published

from jaxengine.checkpoint import load_params, open_checkpoint
from jaxengine.checkpoint.orbax_checkpoint import write_orbax
from jaxengine.models import llama
from sharding import make_mesh, param_shardings

# 48 MB in float32, a sixth of it in the largest parameter.
CONFIG = published(
    "llama", vocab_size=8192, hidden_size=256, intermediate_size=1024, num_hidden_layers=8, head_dim=16,
    torch_dtype="float32",
)
CFG = llama.Config.from_published(CONFIG)


def load(folder: Path, mesh: Mesh) -> llama.Params:
    return jax.block_until_ready(load_params(open_checkpoint(folder), llama, CFG, mesh, "float32", progress=False))


def checksums(params: llama.Params) -> list[int]:
    return [zlib.crc32(np.asarray(leaf)) for leaf in jax.tree.leaves(params)]


def private_bytes() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def peak_rise(work: Callable[[], object]) -> tuple[int, object]:
    """How far private memory rose while `work` ran, in bytes, and what it returned."""
    before, peak, done = private_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], private_bytes())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = work()
    done.set()
    watcher.join()
    return peak[0] - before, result


def write(folder: Path) -> None:
    r = np.random.default_rng(0)
    tensors = {
        name: r.standard_normal(shape, dtype=np.float32) for name, shape in checkpoint(CONFIG).shapes.items()
    }
    write_folder(folder / "published", CONFIG, tensors)
    params = load(folder / "published", make_mesh(2, 2, 2))
    (folder / "orbax").mkdir()
    write_orbax(params, "float32", folder / "orbax")
    shutil.copy(folder / "published" / "config.json", folder / "orbax")
    (folder / "checksums.json").write_text(json.dumps(checksums(params)))


def read(folder: Path, form: str, *sizes: str) -> None:
    mesh = make_mesh(*map(int, sizes))
    jax.device_put(1.0).block_until_ready()
    rise, params = peak_rise(lambda: load(folder / form, mesh))
    leaves = jax.tree.leaves(params)
    wanted = jax.tree.leaves(param_shardings(llama.param_specs(CFG), mesh))
    print(json.dumps({
        "rise": rise,
        "on_devices": sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards),
        "largest": max(leaf.nbytes for leaf in leaves), "whole": sum(leaf.nbytes for leaf in leaves),
        "placed": all(leaf.sharding == sharding for leaf, sharding in zip(leaves, wanted, strict=True)),
        "equal": checksums(params) == json.loads((folder / "checksums.json").read_text()),
    }))


command, folder, *rest = sys.argv[1:]
{"write": write, "read": read}[command](Path(folder), *rest)
