import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x [..., D] / sqrt(mean(x^2) + eps) * weight f32[D], in float32, then x's dtype (Zhang & Sennrich, 2019)."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * jnp.reshape(weight, (1,) * (x.ndim - 1) + weight.shape)).astype(x.dtype)
