"""Checks, before anything is allocated, that a checkpoint has exactly the tensors that a family needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.checkpoint.checkpoint import TensorCheckpoint
from jaxengine.models.weights import NameMap, source
from sharding import ParamSpec

# Tensors that older exports carry and nobody needs: rope tables, causal masks.
_IGNORED_SUFFIXES = (
    ".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached", ".attn.bias", ".masked_bias",
)
_SHOWN = 5


@dataclass(frozen=True)
class Planned:
    """One parameter and the tensors that make it."""

    path: str                       # as "layers.3.wq"
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    names: tuple[str, ...]
    add_one: bool


def plan_parameters(
    checkpoint: TensorCheckpoint, specs: Any, name_map: NameMap, dtype: Any
) -> tuple[list[Planned], Any]:
    """The parameters in the tree's order, and its structure.

    Raises ValueError naming missing tensors, wrong shapes and left-over tensors.
    """
    flat, treedef = jax.tree_util.tree_flatten_with_path(specs, is_leaf=lambda x: isinstance(x, ParamSpec))
    paths = [parameter_path(keys) for keys, _ in flat]
    assert sorted(paths) == sorted(name_map), set(paths) ^ set(name_map)
    planned = []
    for path, (_, spec) in zip(paths, flat, strict=True):
        made_of = source(name_map[path])
        kind = jnp.dtype(spec.dtype or dtype)
        planned.append(Planned(path, spec.shape, kind, made_of.names, made_of.add_one))
    _check_names(checkpoint, planned)
    for parameter, (_, spec) in zip(planned, flat, strict=True):
        _check_tensors(checkpoint, parameter, spec)
    return planned, treedef


def parameter_path(keys: Sequence[Any]) -> str:
    """jax's key path -> dotted path."""
    return ".".join(str(getattr(key, "name", getattr(key, "idx", getattr(key, "key", None)))) for key in keys)


def published_shape(spec: ParamSpec, parts: int) -> tuple[int, ...]:
    """Shape of each of the `parts` tensors that make a parameter.

    Published weights have two axes, the model's width and everything else; a parameter splits the latter, and
    parts are stacked on axis 0.
    """
    dims = list(zip(spec.axes, spec.shape, strict=True))[0 if parts == 1 else 1 :]
    groups = groupby(dims, key=lambda dim: dim[0] == "embed")
    return tuple(prod(size for _, size in group) for _, group in groups)


def _check_names(checkpoint: TensorCheckpoint, planned: list[Planned]) -> None:
    needed = {name for parameter in planned for name in parameter.names}
    found = set(checkpoint.names())
    if missing := sorted(needed - found):
        raise ValueError(
            f"{checkpoint.path} lacks {_some(missing)}, which {_architecture(checkpoint)} needs "
            f"({len(found)} tensors found)"
        )
    # A head that is published beside the embedding it is tied to is a copy.
    ignored = {n for n in found if n.endswith(_IGNORED_SUFFIXES)}
    if checkpoint.config.get("tie_word_embeddings"):
        ignored.add("lm_head.weight")
    if extra := sorted(found - needed - ignored):
        raise ValueError(
            f"{checkpoint.path} holds {_some(extra)}, which {_architecture(checkpoint)} has no place for"
        )


def _check_tensors(checkpoint: TensorCheckpoint, parameter: Planned, spec: ParamSpec) -> None:
    expected = published_shape(spec, len(parameter.names))
    for name in parameter.names:
        found = checkpoint.shape(name)
        if found != expected:
            raise ValueError(
                f"{checkpoint.path}: {name} must have shape {list(expected)} by the config, "
                f"found {list(found)}"
            )
        stored = checkpoint.stored_dtype(name)
        if (stored[0] in "IU" and not stored.startswith("IQ")) or stored == "BOOL":
            raise ValueError(f"{checkpoint.path}: {name} is stored as {stored}, not as a floating-point type")


def _architecture(checkpoint: TensorCheckpoint) -> str:
    return ", ".join(checkpoint.config.get("architectures") or ["the model"])


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ("tensor " if len(names) == 1 else "tensors ") + ", ".join(names[:_SHOWN]) + more
