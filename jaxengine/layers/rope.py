"""Rotary position embedding (Su et al., 2021) in the half-split form of Hugging Face checkpoints."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class RopeConfig:
    """theta and, where `kind` is not "default", how inverse frequencies are stretched for longer contexts.

    kind: "default", "linear" (positions divided by factor) or "llama3" (low frequencies divided, high ones
    kept, a smooth blend between; the Llama 3.1 release).
    """

    head_dim: int
    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def inverse_frequencies(self) -> np.ndarray:
        """float32[head_dim / 2], radians per token."""
        inv = 1.0 / self.theta ** (np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim)
        if self.kind == "linear":
            inv = inv / self.factor
        elif self.kind == "llama3":
            wavelength = 2 * math.pi / inv
            low = self.original_max_position_embeddings / self.low_freq_factor
            high = self.original_max_position_embeddings / self.high_freq_factor
            blend = (self.original_max_position_embeddings / wavelength - self.low_freq_factor) / (
                self.high_freq_factor - self.low_freq_factor
            )
            smooth = (1 - blend) * inv / self.factor + blend * inv
            inv = np.where(wavelength > low, inv / self.factor, np.where(wavelength < high, inv, smooth))
        elif self.kind != "default":
            raise ValueError(f"rope kind {self.kind!r} is not supported; known: default, linear, llama3")
        return inv.astype(np.float32)


def rope_angles(positions: jax.Array, config: RopeConfig) -> tuple[jax.Array, jax.Array]:
    """positions int32[T] -> (cos, sin) f32[T, head_dim / 2]; computed once per step and theta."""
    angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(config.inverse_frequencies())[None, :]
    return jnp.cos(angles), jnp.sin(angles)


def apply_rope(x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotates x [T, ..., H] by its token's angles; in float32, back in x's dtype."""
    cos, sin = (a.reshape(a.shape[0], *(1,) * (x.ndim - 2), a.shape[1]) for a in angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
