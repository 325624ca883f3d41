"""Engines over the real demo models, made once for all engine tests."""

from collections.abc import Iterator

import pytest

from jaxengine import LLM

STRICT = {"forbid_compile_after_warmup": True, "warmup": "full"}


@pytest.fixture(scope="session")
def smol(smollm2: str) -> Iterator[LLM]:
    """SmolLM2 in float32, everything compiled beforehand: one more compilation fails the test."""
    with LLM(smollm2, dtype="float32", max_num_seqs=8, max_num_batched_tokens=64, max_model_len=1024,
             num_blocks=300, progress=False, **STRICT) as llm:
        yield llm


@pytest.fixture(scope="session")
def gemma(gemma3: str) -> Iterator[LLM]:
    with LLM(gemma3, dtype="float32", max_num_seqs=4, max_num_batched_tokens=256, max_model_len=1280,
             num_blocks=200, accept_terms=True, progress=False, **STRICT) as llm:
        yield llm


@pytest.fixture(autouse=True)
def blocks_return(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does, every block, slot and queue entry comes back."""
    yield
    for name in {"smol", "gemma"} & set(request.fixturenames):
        engine = request.getfixturevalue(name).engine
        while engine.has_unfinished:
            engine.step()
        assert engine.scheduler.num_running == engine.scheduler.num_waiting == 0
        assert engine.blocks.usage == 0
        engine.blocks.check(())
