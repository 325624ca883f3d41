"""The bar that shows how far loading weights has come."""

from typing import Any

from tqdm import tqdm


def weights_bar(total: int, progress: bool) -> "tqdm[Any]":
    """A bar on standard error over `total` values."""
    return tqdm(total=total, desc="Loading weights", unit="", unit_scale=True, disable=not progress)
