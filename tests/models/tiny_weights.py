"""Weights of the tiny checkpoints behind the model goldens: a function of each tensor's name and shape alone.

The goldens hold logits, not weights; this file makes the same weights for transformers (when goldens are made)
and for the engine (when they are tested), from integers that no library's random stream can change.
"""

import math
import zlib

import numpy as np


def tiny_tensor(name: str, shape: tuple[int, ...], *, norms_near_zero: bool) -> np.ndarray:
    """float32 values; norms and biases are random too, so that a dropped term shows.

    norms_near_zero: the family multiplies by 1 + w (Gemma), so w rather than 1 + w is stored.
    """
    values = _uniform(zlib.crc32(name.encode()), math.prod(shape)).reshape(shape)
    if "norm" in name:
        values = 0.4 * values + (0.0 if norms_near_zero else 1.0)
    elif name.endswith("bias"):
        values = 0.8 * values
    elif "embed" in name:
        values = 1.5 * values
    else:
        values = values * 2.2 / math.sqrt(shape[-1])
    return values.astype(np.float32)


def _uniform(seed: int, count: int) -> np.ndarray:
    """float64[count] in [-1, 1): the splitmix64 generator in counter form (Steele et al., 2014)."""
    z = (np.arange(1, count + 1, dtype=np.uint64) + (np.uint64(seed) << np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) / 2**52 - 1.0
