"""Counter-based random numbers: a pure function of (request seed, sample index, position, round, lane).

Threefry-2x32 with 20 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), written
out here so that the numbers stay the same whatever the array library's own generator does. No state is kept
and nothing depends on the row, the bucket or the neighbours of a request.
"""

import jax
import jax.numpy as jnp
from flax import struct

MAX_LANES = 1 << 17
MAX_RANDOM_ROUNDS = 1 << 8
_LANE_BITS = 17
_ROUND_BITS = 8          # what remains of the 32 bits, 7, numbers a request's samples (MAX_N = 128)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


@struct.dataclass
class DrawKeys:
    """What identifies one draw per row; all of shape [R]."""

    seed_low: jax.Array       # uint32
    seed_high: jax.Array      # uint32
    sample_index: jax.Array   # int32, 0..127
    position: jax.Array       # int32


def threefry2x32(
    key: tuple[jax.Array, jax.Array], counter: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Encrypts the 64-bit counter under the 64-bit key; uint32 words that broadcast together."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    x, y = counter[0] + schedule[0], counter[1] + schedule[1]
    for step in range(5):
        for distance in _ROTATIONS[step % 2]:
            x = x + y
            y = (y << jnp.uint32(distance)) | (y >> jnp.uint32(32 - distance))
            y = y ^ x
        x = x + schedule[(step + 1) % 3]
        y = y + schedule[(step + 2) % 3] + jnp.uint32(step + 1)
    return x, y


def exponentials(keys: DrawKeys, draw_round: jax.Array | int, lanes: jax.Array) -> jax.Array:
    """Independent Exp(1) variates float32[R, N] for lanes uint32[N], each below MAX_LANES.

    The uniform has 31 bits and keeps its relative precision near zero, where a rare token's win is decided;
    -log1p(-u) carries that over.
    """
    low = (keys.sample_index.astype(jnp.uint32) << jnp.uint32(_LANE_BITS + _ROUND_BITS)) | (
        jnp.asarray(draw_round).astype(jnp.uint32) << jnp.uint32(_LANE_BITS)
    )
    column = (slice(None), None)
    bits, _ = threefry2x32(
        (keys.seed_low[column], keys.seed_high[column]),
        (keys.position.astype(jnp.uint32)[column], low[column] | lanes[None]),
    )
    uniform = ((bits >> jnp.uint32(1)).astype(jnp.int32).astype(jnp.float32) + 0.5) * 2.0**-31
    return -jnp.log1p(-jnp.minimum(uniform, 1 - 2.0**-24))   # 31 bits may round up to 1
