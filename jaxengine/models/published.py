"""Reading a published config.json: one place for the spellings that checkpoints differ in."""

from typing import Any

from jaxengine.layers.rope import RopeConfig


class PublishedConfig:
    """A view of a Hugging Face config dict. Missing required keys raise ValueError naming the key."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

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
        return self.get("head_dim", self.need("hidden_size") // self.need("num_attention_heads"))

    def common(self) -> dict[str, Any]:
        """The fields that every decoder family shares, under this project's names."""
        heads = self.need("num_attention_heads")
        return {
            "vocab_size": self.need("vocab_size"),
            "hidden_size": self.need("hidden_size"),
            "intermediate_size": self.need("intermediate_size"),
            "num_layers": self.num_layers,
            "num_heads": heads,
            "num_kv_heads": self.get("num_key_value_heads", heads),
            "head_dim": self.head_dim,
            "rms_norm_eps": self.get("rms_norm_eps", 1e-6),
            "max_position_embeddings": self.need("max_position_embeddings"),
            "tie_word_embeddings": self.get("tie_word_embeddings", False),
        }

    def sliding_window(self) -> int | None:
        return self.get("sliding_window")

    def rope(self, layer_type: str | None = None) -> RopeConfig:
        """From `rope_parameters` (newer files, nested per layer type in some) or `rope_theta` + `rope_scaling`."""
        parameters = self.get("rope_parameters") or {}
        if layer_type is not None and layer_type in parameters:
            parameters = parameters[layer_type]
        scaling = parameters or self.get("rope_scaling") or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        theta = parameters.get("rope_theta", self.get("rope_theta", 10000.0))
        known = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        return RopeConfig(self.head_dim, theta, kind, **{k: scaling[k] for k in known if k in scaling})
