"""Frozen dataclasses that are pytrees, as flax.struct makes them."""

import dataclasses

import jax


def field(pytree_node=True, **options):
    return dataclasses.field(metadata={"pytree_node": pytree_node}, **options)


def dataclass(cls):
    cls = dataclasses.dataclass(frozen=True)(cls)
    cls.replace = dataclasses.replace
    data = [f.name for f in dataclasses.fields(cls) if f.metadata.get("pytree_node", True)]
    meta = [f.name for f in dataclasses.fields(cls) if not f.metadata.get("pytree_node", True)]
    return jax.tree_util.register_dataclass(cls, data, meta)
