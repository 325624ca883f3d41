"""Everything in the sampler runs under an explicit mesh."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from sharding import make_mesh


@pytest.fixture(autouse=True)
def mesh() -> Iterator[None]:
    with jax.set_mesh(make_mesh()):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
