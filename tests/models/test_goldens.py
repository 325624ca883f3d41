"""Every family and branch against transformers: whole prompts, chunks and single tokens through the paged pool."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from golden_models import CASES, PagedModel, difference, golden_model, run_chunked, run_decode, run_whole

from jaxengine.models.weights import source
from sharding import make_mesh

TOLERANCE = 1e-4


@pytest.mark.parametrize("name", CASES)
def test_float32_matches_transformers(name):
    model = PagedModel(golden_model(name), make_mesh())
    for run in (run_whole, run_chunked, run_decode):
        for logits in model.logits:
            logits.fill(np.nan)
        run(model)
        assert difference(model) < TOLERANCE, run.__name__


@pytest.mark.parametrize("name", CASES)
def test_both_spellings_of_a_config_are_one_model(name):
    golden = golden_model(name)
    assert golden.module.Config.from_published(golden.saved) == golden.cfg


@pytest.mark.parametrize("name", CASES)
def test_every_published_tensor_is_consumed_once(name):
    golden = golden_model(name)
    named = [n for entry in golden.module.name_map(golden.cfg).values() for n in source(entry).names]
    assert sorted(named) == sorted(golden.checkpoint.names())


@pytest.mark.parametrize("name", ["smollm3_window", "gemma2", "gemma3"])
def test_a_window_off_by_one_shows(name):
    golden = golden_model(name)
    windows = tuple(w and w + 1 for w in golden.cfg.sliding_windows)
    golden.cfg = dataclasses.replace(golden.cfg, sliding_windows=windows)
    model = PagedModel(golden, make_mesh())
    run_whole(model)
    assert difference(model) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_bfloat16_stays_close(name):
    golden = golden_model(name)
    model = PagedModel(golden, make_mesh(), jnp.bfloat16)
    run_whole(model)
    spread = np.concatenate(golden.logits).std()
    errors = np.concatenate([got - want for got, want in zip(model.logits, golden.logits, strict=True)]) / spread
    print(name, "bf16 rms", np.sqrt((errors**2).mean()), "max", np.abs(errors).max())
    assert np.sqrt((errors**2).mean()) < 0.03
    assert np.abs(errors).max() < 0.2
