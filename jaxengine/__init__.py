"""jaxengine: an inference engine for language models in JAX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxengine.engine.async_engine import AsyncEngine
    from jaxengine.engine.engine import Engine
    from jaxengine.engine.llm import LLM
    from jaxengine.structured_outputs import StructuredOutputs
    from jaxengine.types import CompletionOutput, Logprob, RequestOutput, SamplingParams

__version__ = "0.1.0"

# Imported on first use: `import jaxengine` costs no more than `import jax`.
_EXPORTS = {
    "LLM": "jaxengine.engine.llm",
    "Engine": "jaxengine.engine.engine",
    "AsyncEngine": "jaxengine.engine.async_engine",
    "SamplingParams": "jaxengine.types",
    "StructuredOutputs": "jaxengine.structured_outputs",
    "RequestOutput": "jaxengine.types",
    "CompletionOutput": "jaxengine.types",
    "Logprob": "jaxengine.types",
}

__all__ = [
    "LLM", "AsyncEngine", "CompletionOutput", "Engine", "Logprob", "RequestOutput", "SamplingParams",
    "StructuredOutputs",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'jaxengine' has no attribute {name!r}")
