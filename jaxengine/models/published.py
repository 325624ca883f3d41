"""Reading a published config.json: one place for the spellings that checkpoints differ in.

What would change a model's mathematics and is not implemented is refused by name.
"""

from dataclasses import MISSING, fields
from typing import Any

from jaxengine.layers.activation import ACTIVATIONS
from jaxengine.layers.rope import RopeConfig
from jaxengine.layers.rope_scaling import ROPE_SCALINGS, RopeScaling

# Keys that no family implements and the values that leave a model as it is.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_bidirectional_attention": (False,),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "quantization_config": (None,),
}
WINDOWED, FULL = "sliding_attention", "full_attention"


class PublishedConfig:
    """A view of a Hugging Face config dict. Missing required keys raise ValueError naming the key.

    implements: keys of NEUTRAL that the family reads itself. head_dim: where the config has none; None means
    hidden_size / num_attention_heads.
    """

    def __init__(self, raw: dict[str, Any], implements: tuple[str, ...] = (), head_dim: int | None = None) -> None:
        self.raw = raw
        self.default_head_dim = head_dim
        for key, allowed in NEUTRAL.items():
            if key not in implements:
                self.refuse(key, allowed)

    def refuse(self, key: str, allowed: tuple[Any, ...]) -> None:
        """Raises ValueError if `key` is set to anything but one of `allowed`."""
        value = self.raw.get(key)
        if value is not None and value not in allowed:
            supported = " or ".join(repr(a) for a in allowed)
            raise ValueError(
                f"config.json: {key}={value!r} is not supported for model_type {self.model_type!r}, only {supported}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        value = self.raw.get(key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        if self.raw.get(key) is None:
            raise ValueError(f"config.json has no {key!r}, which model_type {self.model_type!r} needs")
        return self.raw[key]

    @property
    def model_type(self) -> str:
        return self.raw.get("model_type", "?")

    @property
    def num_layers(self) -> int:
        return self.need("num_hidden_layers")

    @property
    def head_dim(self) -> int:
        head_dim = self.get("head_dim", self.default_head_dim)
        if head_dim is None:
            width, heads = self.need("hidden_size"), self.need("num_attention_heads")
            if width % heads:
                raise ValueError(
                    f"config.json: hidden_size={width} is not a multiple of num_attention_heads={heads}"
                )
            head_dim = width // heads
        if head_dim % 2:
            raise ValueError(f"config.json: head_dim={head_dim} must be even for rotary embeddings")
        return head_dim

    def common(self, tied: bool = False) -> dict[str, Any]:
        """The fields that every decoder family shares, under this project's names.

        tied: whether the family's embedding is the head where the config does not say.
        """
        heads = self.need("num_attention_heads")
        kv_heads = self.get("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ValueError(
                f"config.json: num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}"
            )
        return {
            "vocab_size": self.need("vocab_size"),
            "hidden_size": self.need("hidden_size"),
            "intermediate_size": self.need("intermediate_size"),
            "num_layers": self.num_layers,
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.get("rms_norm_eps", 1e-6),
            "max_position_embeddings": self.need("max_position_embeddings"),
            "tie_word_embeddings": self.get("tie_word_embeddings", tied),
        }

    def activation(self, default: str) -> str:
        """A name in ACTIVATIONS. Gemma says `hidden_activation`, which wins over `hidden_act`."""
        name = self.get("hidden_activation", self.get("hidden_act", default))
        if name not in ACTIVATIONS:
            raise ValueError(f"config.json: hidden_act={name!r} is not supported; known: {', '.join(ACTIVATIONS)}")
        return name

    def layer_types(self, default: list[str]) -> tuple[str, ...]:
        """Each layer's kind of attention: `layer_types`, or where a config has none `default`."""
        types = self.get("layer_types", default)
        if len(types) != self.num_layers:
            raise ValueError(f"config.json: {len(types)} layer_types for num_hidden_layers={self.num_layers}")
        for name in types:
            if name not in (WINDOWED, FULL):
                raise ValueError(f"config.json: layer type {name!r} is not supported; known: {FULL}, {WINDOWED}")
        return tuple(types)

    def windows(self, layer_types: tuple[str, ...], window: int | None) -> tuple[int | None, ...]:
        """Each layer's sliding window in tokens, the token itself included; None sees everything."""
        if WINDOWED in layer_types and (not isinstance(window, int) or window < 1):
            raise ValueError(f"config.json: sliding_window={window!r} must be a whole number of at least 1")
        return tuple(window if name == WINDOWED else None for name in layer_types)

    def qwen_windows(self) -> tuple[int | None, ...]:
        """Qwen's windows: on the layers from `max_window_layers` on, where `use_sliding_window` asks for them."""
        if not self.get("use_sliding_window", False):
            return (None,) * self.num_layers
        first = self.get("max_window_layers", 28)
        types = self.layer_types([WINDOWED if i >= first else FULL for i in range(self.num_layers)])
        return self.windows(types, self.get("sliding_window", 4096))

    def rope(self, default_theta: float = 10000.0, layer_type: str | None = None) -> RopeConfig:
        """From `rope_parameters` (newer files; nested per layer type in some), or `rope_theta` and `rope_scaling`."""
        parameters: dict[str, Any] = self.get("rope_parameters", {})
        if layer_type is not None and parameters:
            parameters = parameters.get(layer_type) or {"rope_type": "default"}
        theta: float = parameters.get("rope_theta", self.get("rope_theta", default_theta))
        return RopeConfig(self.head_dim, theta, self.rope_scaling(parameters or self.get("rope_scaling", {})))

    def rope_scaling(self, parameters: dict[str, Any]) -> RopeScaling | None:
        """Raises ValueError naming an unknown kind, an unknown key or a missing one."""
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        values = {
            k: v for k, v in parameters.items() if k not in ("rope_type", "type", "rope_theta") and v is not None
        }
        if values.pop("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError("config.json: a partial_rotary_factor other than 1 is not supported in rope_parameters")
        if kind == "default":
            return None
        if kind not in ROPE_SCALINGS:
            known = ", ".join(("default", *ROPE_SCALINGS))
            raise ValueError(f"config.json: rope_type={kind!r} is not supported; known: {known}")
        scaling = ROPE_SCALINGS[kind]
        takes = {f.name: f for f in fields(scaling)}
        original = values.pop("original_max_position_embeddings", self.need("max_position_embeddings"))
        if "original_max_position_embeddings" in takes:
            values["original_max_position_embeddings"] = original
        if unknown := sorted(values.keys() - takes.keys()):
            raise ValueError(f"config.json: rope_type={kind!r} does not take {', '.join(unknown)}")
        if missing := [n for n, f in takes.items() if f.default is MISSING and n not in values]:
            raise ValueError(f"config.json: rope_type={kind!r} needs {', '.join(missing)}")
        return scaling(**values)
