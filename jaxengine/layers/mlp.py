from collections.abc import Callable

import jax

from jaxengine.layers.linear import linear


def gated_mlp(
    x: jax.Array, gate_up: jax.Array, down: jax.Array, activation: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """down(activation(gate(x)) * up(x)) with x [T, D], gate_up [2, F, D], down [D, F] (Shazeer, 2020)."""
    hidden = linear(x, gate_up, ("tokens", None, "ffn"))
    hidden = activation(hidden[:, 0]) * hidden[:, 1]
    return linear(hidden, down, ("tokens", "embed"))
