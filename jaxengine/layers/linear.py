import jax
import jax.numpy as jnp

from sharding import spec


def linear(equation: str, x: jax.Array, weight: jax.Array, out: tuple[str | None, ...]) -> jax.Array:
    """einsum(equation, x, weight) in x's dtype; `out` names the result's logical axes for the mesh.

    Weights are stored output-major, [..., D], which every back end reads along its rows.
    """
    return jnp.einsum(equation, x, weight, out_sharding=spec(*out))


def embed(table: jax.Array, token_ids: jax.Array) -> jax.Array:
    """Rows of table [V, D] for token_ids int32[T] -> [T, D]."""
    return table.at[token_ids].get(out_sharding=spec("tokens", "embed"))


def unembed(x: jax.Array, table: jax.Array) -> jax.Array:
    """x [R, D] against table [V, D] -> float32 logits [R, V]."""
    return jnp.einsum("rd,vd->rv", x, table, out_sharding=spec("tokens", "vocab"), preferred_element_type=jnp.float32)
