"""Checkpoints: opening any supported format, loading parameters from it, converting between formats."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxengine.checkpoint.checkpoint import Checkpoint
    from jaxengine.checkpoint.conversion import convert
    from jaxengine.checkpoint.demo import cached_demo, demo_models, gemma_terms_accepted
    from jaxengine.checkpoint.load import load_params
    from jaxengine.checkpoint.open import open_checkpoint

# Imported on first use: reading a GGUF header needs no jax.
_EXPORTS = {
    "Checkpoint": "jaxengine.checkpoint.checkpoint",
    "cached_demo": "jaxengine.checkpoint.demo",
    "convert": "jaxengine.checkpoint.conversion",
    "demo_models": "jaxengine.checkpoint.demo",
    "gemma_terms_accepted": "jaxengine.checkpoint.demo",
    "load_params": "jaxengine.checkpoint.load",
    "open_checkpoint": "jaxengine.checkpoint.open",
}

__all__ = [
    "Checkpoint", "cached_demo", "convert", "demo_models", "gemma_terms_accepted", "load_params",
    "open_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = globals()[name] = getattr(import_module(_EXPORTS[name]), name)
        return value
    raise AttributeError(f"module 'jaxengine.checkpoint' has no attribute {name!r}")
