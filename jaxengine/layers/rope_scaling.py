"""How rotary frequencies are changed for contexts longer than a model was first trained on.

Each scaling maps inverse frequencies float64[head_dim / 2] (radians per token, falling) to new ones; its
fields carry the names that published configs use. `magnitude` multiplies cos and sin.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class RopeScaling(Protocol):
    @property
    def magnitude(self) -> float: ...

    def stretch(self, inverse: np.ndarray, theta: float) -> np.ndarray: ...


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor` (Chen et al., 2023)."""

    factor: float
    magnitude = 1.0

    def stretch(self, inverse: np.ndarray, theta: float) -> np.ndarray:
        return inverse / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, a smooth blend between (the Llama 3.1 release)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    magnitude = 1.0

    def stretch(self, inverse: np.ndarray, theta: float) -> np.ndarray:
        turns = self.original_max_position_embeddings * inverse / (2 * math.pi)    # in the original context
        kept = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)
        return inverse * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class YarnScaling:
    """As Llama3Scaling with the blend over dimensions rather than frequencies, and larger cos and sin
    (YaRN; Peng et al., 2023)."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)
        return self._mscale(1.0)

    def _mscale(self, weight: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0

    def stretch(self, inverse: np.ndarray, theta: float) -> np.ndarray:
        dims = 2 * len(inverse)

        def dimension_of(turns: float) -> float:
            """The dimension whose frequency makes that many turns in the original context."""
            context = self.original_max_position_embeddings
            return dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

        first, last = dimension_of(self.beta_fast), dimension_of(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        width = last - first or 0.001       # the published code's guard against an empty ramp
        divided = np.clip((np.arange(len(inverse)) - first) / width, 0, 1)
        return inverse * (1 - divided + divided / self.factor)


ROPE_SCALINGS = {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}
