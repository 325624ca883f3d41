"""Tokenizers of the demo models, of small folders, and of vocabularies made up in a test."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxengine.checkpoint import open_checkpoint
from jaxengine.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: str) -> Tokenizer:
    return load_tokenizer(open_checkpoint(smollm2, progress=False))


@pytest.fixture(scope="session")
def gemma3_tokenizer(gemma3: str) -> Tokenizer:
    return load_tokenizer(open_checkpoint(gemma3, accept_terms=True, progress=False))


@pytest.fixture(scope="session")
def load() -> Callable[..., Tokenizer]:
    """load(folder or GGUF metadata, config=..., generation_config=..., chat_template=...)"""

    def load(source: Path | dict[str, Any], chat_template: str | None = None, **configs: Any) -> Tokenizer:
        is_folder = isinstance(source, Path)
        checkpoint = SimpleNamespace(
            path=source if is_folder else Path("model.gguf"),
            metadata={} if is_folder else source,
            config=configs.get("config", {}),
            generation_config=configs.get("generation_config", {}),
        )
        return load_tokenizer(checkpoint, chat_template)

    return load
