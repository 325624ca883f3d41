"""Shared by every test: where JAX runs, how strict it is, and the demo models.

Tests run on the CPU unless `-m gpu` or `-m tpu` asks for the accelerator. Gemma's terms must be accepted
(JAXENGINE_ACCEPT_GEMMA_TERMS=1) before the tests that read its weights run.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from jaxengine.checkpoint import gemma_terms_accepted

ACCELERATORS = ("gpu", "tpu")
# All of these run on the oldest supported jax too: they are where its versions differ. Elsewhere a marker says so.
FLOOR_FOLDERS = {"models", "sampler"}

settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_configure(config: pytest.Config) -> None:
    if _asked_for(config) is None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax  # after the platform is chosen

    jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = _asked_for(config)
    for item in items:
        if item.path.parent.name in FLOOR_FOLDERS:
            item.add_marker(pytest.mark.floor)
        for name in ACCELERATORS:
            if item.get_closest_marker(name) and name != asked:
                item.add_marker(pytest.mark.skip(reason=f"needs a {name.upper()}: pytest -m {name}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    asked = _asked_for(session.config)
    if asked and session.items:
        import jax

        if jax.default_backend() != asked:
            raise pytest.UsageError(f"-m {asked}: jax sees only {jax.default_backend()}")


def _asked_for(config: pytest.Config) -> str | None:
    """The accelerator whose marker `-m` names, if any."""
    expression = str(config.option.markexpr or "").split()
    return next((name for name in ACCELERATORS if name in expression and "not" not in expression), None)


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of reference files."""
    return Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The demo model that needs no consent: a name that `LLM` and `open_checkpoint` take."""
    return "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def gemma3() -> str:
    """The Gemma demo model; its tests are skipped until its terms are accepted."""
    if not gemma_terms_accepted(os.environ):
        pytest.skip("Gemma's terms are not accepted: set JAXENGINE_ACCEPT_GEMMA_TERMS=1")
    return "gemma3-270m"
