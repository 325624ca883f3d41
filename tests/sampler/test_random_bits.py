"""The generator: known answers, all bits of the key, and the shape of its exponentials."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from sampler_reference import ROWS, VOCAB, draws

from jaxengine.engine.random_bits import MAX_LANES, DrawKeys, exponentials, threefry2x32
from jaxengine.types import SamplingParams

# The published test vectors of Threefry-2x32-20: key, counter, result.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "counter", "result"), KNOWN)
def test_known_answers(key: tuple[int, int], counter: tuple[int, int], result: tuple[int, int]) -> None:
    words = [jnp.uint32(w) for w in (*key, *counter)]
    out = threefry2x32((words[0], words[1]), (words[2], words[3]))
    assert tuple(int(w) for w in out) == result


def test_exponentials_follow_their_law_down_to_rare_values() -> None:
    rows = jnp.arange(8, dtype=jnp.int32)
    keys = DrawKeys(rows.astype(jnp.uint32), rows.astype(jnp.uint32) * 0, rows, rows + 100)
    e = np.asarray(jax.jit(exponentials)(keys, 3, jnp.arange(MAX_LANES, dtype=jnp.uint32))).ravel()
    assert e.min() > 0
    assert np.isfinite(e).all()
    assert scipy.stats.kstest(e[::16], "expon").pvalue > 1e-3
    for bound in (1e-3, 1e-4, 1e-5):
        expected = bound * len(e)
        assert abs((e < bound).sum() - expected) < 4 * np.sqrt(expected)


def ids(seed: int, index: int = 0, start: int = 0, **options) -> list[int]:
    logits = np.zeros(VOCAB, np.float32)
    return draws(logits, SamplingParams(seed=seed, **options), ROWS + start, index).tolist()[start:]


@pytest.mark.parametrize("options", [{}, {"top_k": 50}], ids=str)
def test_every_part_of_the_key_counts(options: dict) -> None:
    base = ids(5, **options)
    assert ids(5, **options) == base
    others = [ids(5 + 2**32, **options), ids(5 + 2**63, **options), ids(4, **options), ids(5, 1, **options),
              ids(5, 127, **options), base[1:] + base[:1]]
    for other in others:
        same = np.mean(np.array(other) == np.array(base))
        assert same < 0.1


def test_seeds_are_taken_modulo_64_bits() -> None:
    assert ids(-1) == ids(2**64 - 1)
