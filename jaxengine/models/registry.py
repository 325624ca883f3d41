"""architecture in config.json -> module of the family. One line adds a model."""

from importlib import import_module
from types import ModuleType
from typing import Any

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "SmolLM3ForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
}


def family(published: dict[str, Any]) -> ModuleType:
    """The module (Config, Params, param_specs, name_map, forward) that serves a published config.

    Raises ValueError naming the architecture and the known ones.
    """
    architectures = published.get("architectures") or ["(none)"]
    for name in architectures:
        if name in FAMILIES:
            return import_module(f"jaxengine.models.{FAMILIES[name]}")
    raise ValueError(f"architecture {', '.join(architectures)} is not supported; known: {', '.join(sorted(FAMILIES))}")
