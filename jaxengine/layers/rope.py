"""Rotary position embedding (Su et al., 2021) in the half-split form of Hugging Face checkpoints."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.layers.rope_scaling import RopeScaling

Angles = tuple[jax.Array, jax.Array]     # cos and sin, f32[T, H / 2] each


@dataclass(frozen=True)
class RopeConfig:
    """theta and, where a model was stretched to a longer context, how."""

    head_dim: int
    theta: float
    scaling: RopeScaling | None = None

    def inverse_frequencies(self) -> np.ndarray:
        """float32[head_dim / 2], radians per token."""
        inverse = self.theta ** -(np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim)
        if self.scaling is not None:
            inverse = self.scaling.stretch(inverse, self.theta)
        return inverse.astype(np.float32)

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by."""
        return 1.0 if self.scaling is None else self.scaling.magnitude


def rope_angles(positions: jax.Array, config: RopeConfig) -> Angles:
    """positions int32[T] -> cos and sin; computed once per step and theta."""
    angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(config.inverse_frequencies())[None, :]
    # The barrier keeps XLA from fusing cos and sin into every layer, once for each head.
    return jax.lax.optimization_barrier((jnp.cos(angles) * config.magnitude, jnp.sin(angles) * config.magnitude))


def apply_rope(x: jax.Array, angles: Angles) -> jax.Array:
    """Rotates x [T, ..., H] by its token's angles; in float32, back in x's dtype."""
    cos, sin = (a.reshape(a.shape[0], *(1,) * (x.ndim - 2), a.shape[1]) for a in angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
