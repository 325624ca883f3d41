"""Stands in for flax on a machine that has only jax: the part of flax.struct that the engine's steps use."""

__version__ = "0"
