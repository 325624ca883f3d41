"""An Orbax checkpoint of a family's own parameters: already fused and laid out, so opening it only copies."""

import json
import math
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxengine.checkpoint.checkpoint import Checkpoint, check_config, default_dtype
from jaxengine.checkpoint.gguf_vocabulary import read_vocabulary
from jaxengine.checkpoint.huggingface import read_json
from jaxengine.checkpoint.plan import parameter_path
from jaxengine.checkpoint.progress import weights_bar
from sharding import abstract_params

MARKER = "jaxengine_checkpoint.json"      # what tells such a folder from any other
VERSION = 1
_ARRAYS = "params"
_SMALLEST_BATCH = 16 << 20      # bytes


@dataclass(frozen=True)
class OrbaxCheckpoint(Checkpoint):
    shapes: dict[str, tuple[int, ...]] = field(kw_only=True, repr=False)      # by dotted parameter path

    def restore(self, specs: Any, dtype: Any, mesh: Mesh, progress: bool = True) -> Any:
        """The parameter tree in `dtype`, each array read straight to its sharding on `mesh`.

        Raises ValueError where the tree has other parameters or shapes than the checkpoint, or it is damaged.
        """
        abstract = abstract_params(specs, dtype, mesh)
        flat, treedef = jax.tree_util.tree_flatten_with_path(abstract)
        wanted = {parameter_path(keys): leaf for keys, leaf in flat}
        self._check(wanted)
        restored: dict[str, jax.Array] = {}
        total = sum(math.prod(leaf.shape) for leaf in wanted.values())
        with _checkpointer() as checkpointer, weights_bar(total, progress) as bar:
            for batch in _batches(wanted):
                restored |= self._restore_batch(checkpointer, batch)
                jax.block_until_ready(list(restored.values()))
                bar.update(sum(math.prod(leaf.shape) for leaf in batch.values()))
        return jax.tree.unflatten(treedef, [restored[path] for path in wanted])

    def _restore_batch(self, checkpointer: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        orbax = import_module("orbax.checkpoint")       # takes most of a second
        restore_args = orbax.checkpoint_utils.construct_restore_args(batch)
        wanted = orbax.args.PyTreeRestore(item=batch, restore_args=restore_args, partial_restore=True)
        try:
            return checkpointer.restore(self.path.absolute() / _ARRAYS, args=wanted)
        except Exception as error:       # Orbax raises no narrower type for a file that it cannot read
            reason = str(error).splitlines()[0][:200]
            raise ValueError(f"{self.path}: the parameters could not be read: {reason}") from error

    def _check(self, wanted: dict[str, jax.ShapeDtypeStruct]) -> None:
        if self.shapes.keys() != wanted.keys():
            odd = ", ".join(sorted(self.shapes.keys() ^ wanted.keys())[:5])
            raise ValueError(f"{self.path} does not fit this model: parameters {odd} differ; convert again")
        for path, leaf in wanted.items():
            if self.shapes[path] != leaf.shape:
                raise ValueError(
                    f"{self.path}: parameter {path} must have shape {list(leaf.shape)} by the config, "
                    f"found {list(self.shapes[path])}"
                )


def open_orbax(folder: Path) -> OrbaxCheckpoint:
    """Opens a folder that `write_orbax` filled."""
    marker = read_json(folder / MARKER)
    if marker.get("version") != VERSION:
        raise ValueError(f"{folder / MARKER}: version={marker.get('version')!r}, known: {VERSION}; convert again")
    shapes = marker.get("parameters")
    if not isinstance(shapes, dict) or not all(isinstance(shape, list) for shape in shapes.values()):
        raise ValueError(f"{folder / MARKER}: parameters must map each parameter to its shape")
    if not (folder / _ARRAYS).is_dir():
        raise ValueError(f"{folder} has no {_ARRAYS}/: the checkpoint is incomplete")
    config = check_config(read_json(folder / "config.json"), str(folder / "config.json"), len(shapes))
    generation = folder / "generation_config.json"
    return OrbaxCheckpoint(
        folder, "orbax", config, default_dtype(marker, "", str(folder / MARKER)),
        generation_config=read_json(generation) if generation.is_file() else {},
        metadata=read_vocabulary(folder),
        shapes={path: tuple(shape) for path, shape in shapes.items()},
    )


def write_orbax(params: Any, dtype: str, folder: Path) -> None:
    """Writes the arrays and the marker; config.json and the tokenizer's files are the caller's."""
    orbax = import_module("orbax.checkpoint")
    flat = {parameter_path(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(params)[0]}
    with _checkpointer() as checkpointer:
        checkpointer.save(folder.absolute() / _ARRAYS, args=orbax.args.PyTreeSave(flat))
    marker = {
        "version": VERSION, "dtype": dtype, "parameters": {path: list(leaf.shape) for path, leaf in flat.items()}
    }
    (folder / MARKER).write_text(json.dumps(marker, indent=1))


def _checkpointer() -> Any:
    orbax = import_module("orbax.checkpoint")
    # Weights barely compress, and decompressing doubled the time to open.
    return orbax.Checkpointer(orbax.PyTreeCheckpointHandler(use_compression=False))


def _batches(arrays: dict[str, jax.ShapeDtypeStruct]) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Groups of arrays, none larger than the largest array: what Orbax reads at once it may hold twice."""
    sizes = {path: math.prod(leaf.shape) * leaf.dtype.itemsize for path, leaf in arrays.items()}
    limit = max(_SMALLEST_BATCH, *sizes.values())
    batches: list[dict[str, jax.ShapeDtypeStruct]] = []
    room = 0
    for path, leaf in arrays.items():
        if sizes[path] > room or not batches:
            batches.append({})
            room = limit
        batches[-1][path] = leaf
        room -= sizes[path]
    return batches
