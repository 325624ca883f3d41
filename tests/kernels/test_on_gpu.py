"""The Hopper kernels on a GPU: pytest -m gpu."""

import secrets

import jax
import pytest
from chip_check import largest_error, tolerance
from hopper_cases import CASES, LARGE, hopper_cases

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", list(hopper_cases(CASES + LARGE)), ids=lambda case: case.name)
def test_matches_float64(case):
    assert jax.devices()[0].platform == "gpu"
    seed = secrets.randbits(32)
    assert largest_error(case, seed, "pallas_gpu") < tolerance(case), f"seed {seed}"
