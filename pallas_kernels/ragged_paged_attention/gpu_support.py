"""What the Hopper kernels can serve, and the reason where they cannot. Imports no kernel."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.need import Need
from pallas_kernels.ragged_paged_attention.pool import QUANTIZED

HEAD_DIMS = (64, 128, 256)
BLOCK_SIZES = (16, 32, 64)
DTYPES = (np.dtype(jnp.bfloat16), np.dtype(jnp.float16))
MAX_GROUP = {64: 16, 128: 16, 256: 8}     # by head width: 8 tokens of each head fill a tile's rows at the least


def unsupported(need: Need) -> str | None:
    """Why the back end cannot serve this, or None where it can."""
    if need.platform not in ("gpu", "cuda"):
        return f"the platform is {need.platform}, and the kernels are for NVIDIA GPUs"
    if jax.__version_info__ < (0, 11):
        return f"jax {jax.__version__} is older than 0.11, which brought what the kernels need"
    if need.compute_capability is not None and not need.compute_capability.startswith("9."):
        return f"the GPU's compute capability is {need.compute_capability}, and the kernels are for Hopper's 9.0"
    return unsupported_shape(need)


def unsupported_shape(need: Need) -> str | None:
    """The same for any platform: the kernels can be interpreted, and compiled without the chip."""
    kv_dtype, known = np.dtype(need.kv_dtype), ", ".join(str(dtype) for dtype in DTYPES)
    if need.head_dim not in HEAD_DIMS:
        return f"head_dim={need.head_dim} is not one of {HEAD_DIMS}"
    if need.block_size not in BLOCK_SIZES:
        return f"block_size={need.block_size} is not one of {BLOCK_SIZES}"
    if kv_dtype not in DTYPES + QUANTIZED:
        return f"the KV pool's {kv_dtype} is not one of {known}, {', '.join(str(dtype) for dtype in QUANTIZED)}"
    if need.query_dtype is not None and np.dtype(need.query_dtype) not in DTYPES:
        return f"the model's {np.dtype(need.query_dtype)} is not one of {known}"
    if need.query_dtype is not None and kv_dtype not in QUANTIZED and np.dtype(need.query_dtype) != kv_dtype:
        return f"the model's {np.dtype(need.query_dtype)} is not the KV pool's {kv_dtype}"
    largest = 8 if kv_dtype in QUANTIZED else MAX_GROUP[need.head_dim]
    if need.group is not None and need.group > largest:
        return f"{need.group} query heads share a KV head, more than {largest}"
    return None
