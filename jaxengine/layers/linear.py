"""Matrix products of activations with weights, each device on its own shard."""

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, get_abstract_mesh

from jaxengine.host_cpu import multiplies_bf16
from sharding import spec

WIDEN_ROWS = 256


def linear(x: jax.Array, weight: jax.Array, out: tuple[str | None, ...]) -> jax.Array:
    """x [T, *in] with weight [*out, *in] -> [T, *out] in x's dtype; `out` names the result's logical axes.

    Weights are stored output-major, so that every back end reads them along their rows. The product is
    one plain two-dimensional dot of each device's shard: given a dot that keeps or contracts several
    dimensions, XLA's CPU back end copies the whole weight, transposed, on every call (5 to 10 times
    slower at two tokens). Partial products are summed over the mesh axes that split the contracted dims.
    """
    num_in = x.ndim - 1
    weight_axes = jax.typeof(weight).sharding.spec
    in_axes = weight_axes[weight.ndim - num_in:]
    split = _mesh_axes(in_axes)

    def local(x: jax.Array, weight: jax.Array) -> jax.Array:
        kept, contracted = weight.shape[: weight.ndim - num_in], x.shape[1:]
        y = _dot(x.reshape(x.shape[0], -1), weight.reshape(-1, math.prod(contracted)))
        if split:
            y = jax.lax.psum(y, split)
        return y.reshape(x.shape[0], *kept)

    in_specs = (PartitionSpec(*spec("tokens"), *in_axes), weight_axes)
    return jax.shard_map(local, in_specs=in_specs, out_specs=spec(*out), check_vma=False)(x, weight)


def _dot(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [T, K] with weight [N, K] -> [T, N] in x's dtype."""
    def plain(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.einsum("tk,nk->tn", x, weight)

    def widened(x: jax.Array, weight: jax.Array) -> jax.Array:
        # Tied to x, or XLA widens every layer's weights at the step's start and holds them all to its end.
        x, weight = jax.lax.optimization_barrier((x, weight))
        wide = jax.lax.optimization_barrier(weight.astype(jnp.float32))
        return plain(x.astype(jnp.float32), wide).astype(x.dtype)

    # A CPU without bfloat16 instructions multiplies float32 faster (measured on Zen 3: 111 against 80
    # GFLOP/s at 512 rows), and from some hundred rows on that pays for widening the weight on the way.
    if x.dtype != jnp.bfloat16 or x.shape[0] < WIDEN_ROWS or multiplies_bf16():
        return plain(x, weight)
    return jax.lax.platform_dependent(x, weight, cpu=widened, default=plain)


def _mesh_axes(dims: tuple[str | tuple[str, ...] | None, ...]) -> tuple[str, ...]:
    """The mesh axes of more than one device that split any of `dims`."""
    sizes = get_abstract_mesh().shape
    names = [name for dim in dims if dim is not None for name in ((dim,) if isinstance(dim, str) else dim)]
    return tuple(name for name in names if sizes[name] > 1)


def embed(table: jax.Array, token_ids: jax.Array) -> jax.Array:
    """Rows of table [V, D] for token_ids int32[T] -> [T, D]."""
    return table.at[token_ids].get(out_sharding=spec("tokens", "embed"))


def scaled_embed(table: jax.Array, token_ids: jax.Array) -> jax.Array:
    """`embed` times sqrt(D); the factor is rounded to the table's dtype, as Gemma was trained with."""
    return embed(table, token_ids) * jnp.asarray(table.shape[1] ** 0.5, table.dtype)


def unembed(x: jax.Array, table: jax.Array) -> jax.Array:
    """x [R, D] against table [V, D] -> float32 logits [R, V]."""
    return jnp.einsum("rd,vd->rv", x, table, out_sharding=spec("tokens", "vocab"), preferred_element_type=jnp.float32)


def softcap(x: jax.Array, cap: float) -> jax.Array:
    """cap * tanh(x / cap): x squeezed into (-cap, cap)."""
    return cap * jnp.tanh(x / cap)
