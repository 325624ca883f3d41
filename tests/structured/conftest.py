"""A tiny random model, which writes nonsense unless a grammar holds it, and tokenizers of every kind."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxengine import LLM
from jaxengine.tokenizer import Tokenizer, load_tokenizer

sys.path += [str(Path(__file__).parent.parent / name) for name in ("checkpoint", "server", "tokenizer")]

from made_up_vocabularies import byte_level, sentencepiece
from tiny_model import write_model

CONTEXT = 2048


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("tiny") / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(str(tiny_folder), dtype="float32", max_num_seqs=8, max_num_batched_tokens=64, num_blocks=1200,
             max_model_len=CONTEXT, progress=False) as llm:
        yield llm


@pytest.fixture(scope="session")
def tokenizers(tiny: LLM) -> dict[str, Tokenizer]:
    """From tokenizer.json, and GGUF's two kinds."""

    def made_up(metadata: dict[str, Any]) -> Tokenizer:
        return load_tokenizer(SimpleNamespace(path=Path("m.gguf"), metadata=metadata, config={}, generation_config={}))

    return {
        "folder": tiny.tokenizer,
        "sentencepiece": made_up(sentencepiece()),
        "byte_level": made_up(byte_level("llama-bpe", special=["<s>", "</s>"], bos="<s>", eos="</s>")),
        "no_eos": made_up(byte_level("llama-bpe", special=["<s>"], bos="<s>")),
    }


@pytest.fixture(autouse=True)
def blocks_return(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does, every block and queue entry comes back."""
    yield
    if "tiny" in request.fixturenames:
        engine = request.getfixturevalue("tiny").engine
        while engine.has_unfinished:
            engine.step()
        assert engine.blocks.usage == 0
        assert not engine.live.grammars._matchers
        assert not engine.live.grammars._matchers
