"""Default sampling values from a checkpoint's generation_config.json."""

from collections.abc import Mapping
from typing import Any

# Name in generation_config.json -> name in SamplingParams; the keys that vLLM honours.
_HONOURED = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_sampling(generation_config: Mapping[str, Any]) -> dict[str, float | int]:
    """Keyword arguments for SamplingParams where a request leaves them out.

    As vLLM does, `do_sample` is not looked at: false does not make requests greedy, only temperature 0 does.
    Values that are absent or null are left out. Raises ValueError for a value that is not a number.
    """
    defaults: dict[str, float | int] = {}
    for name, parameter in _HONOURED.items():
        value = generation_config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"generation_config.json: {name}={value!r} must be a number")
        defaults[parameter] = value
    return defaults
