"""Products with weights on a CPU without bfloat16 instructions: the same numbers, and no second copy of a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.layers import linear as layer
from sharding import make_mesh, spec

ROWS, WIDTH, LAYERS = layer.WIDEN_ROWS, 64, 12


@pytest.fixture(autouse=True)
def without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "multiplies_bf16", lambda: False)


def chain(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    for weight in weights:
        x = layer.linear(x, weight, ("tokens", "embed"))
    return x


def arrays(rows: int, layers: int) -> tuple[jax.Array, list[jax.Array]]:
    rng = np.random.default_rng(0)

    def draw(axis: str | None, *shape: int) -> jax.Array:
        return jax.reshard(jnp.asarray(rng.normal(size=shape) / 8, jnp.bfloat16), spec(axis, None))

    return draw("tokens", rows, WIDTH), [draw(None, WIDTH, WIDTH) for _ in range(layers)]


def test_widened_products_are_those_of_float64() -> None:
    with jax.set_mesh(make_mesh()):
        x, (weight,) = arrays(ROWS, 1)
        y = jax.jit(chain)(x, [weight])
    exact = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, rtol=2**-8, atol=1e-6)      # one rounding


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="XLA under jax 0.10 widens all weights at once")
def test_one_weight_is_widened_at_a_time() -> None:
    with jax.set_mesh(make_mesh()):
        x, weights = arrays(ROWS, LAYERS)
        temp = [
            jax.jit(chain).lower(x, weights[:n]).compile().memory_analysis().temp_size_in_bytes for n in (2, LAYERS)
        ]
    assert temp[1] < temp[0] + 2 * 4 * WIDTH * WIDTH, "more layers need more memory: their weights are widened at once"
