"""One tiny engine of random weights for all benchmarks, so that each test compiles next to nothing."""

import argparse
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest

from jaxengine.bench import floor
from jaxengine.bench.model import open_engine, sibling
from jaxengine.bench.report import Report
from jaxengine.engine.engine import Engine

OPTIONS = {
    "dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 128, "max_model_len": 512, "num_blocks": 300,
    "decode_buckets": (8,), "token_buckets": (128,),
}


@pytest.fixture(scope="session")
def shared_engine() -> Iterator[Engine]:
    engine = open_engine("random:tiny", OPTIONS)
    yield engine
    engine.runner.close()


@pytest.fixture
def tiny(shared_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The shared engine; a benchmark that closes it does not. Every block has come back afterwards."""
    monkeypatch.setattr(shared_engine.runner, "close", lambda: None)
    monkeypatch.setattr(floor, "BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(floor, "DOTS", 3)
    yield shared_engine
    assert not shared_engine.has_unfinished
    assert shared_engine.blocks.num_used == 0


@pytest.fixture
def measure(tiny: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """Runs a benchmark's `measure` on the tiny engine, with the cache and scheduler settings that it asks for."""
    parts = {"cache": ("enable_prefix_caching",), "scheduler": ("enable_chunked_prefill",)}

    def engine_for(args: argparse.Namespace, **defaults: object) -> Engine:
        return sibling(tiny, **{p: {n: defaults[n] for n in names if n in defaults} for p, names in parts.items()})

    def run(name: str, *options: str) -> Report:
        module = import_module(f"jaxengine.bench.{name}")
        monkeypatch.setattr(module, "engine_for", engine_for)
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        return module.measure(parser.parse_args(["--repeats", "1", *options]))

    return run
