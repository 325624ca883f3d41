"""What the TPU kernel can serve, and the reason where it cannot. Imports no kernel."""

import jax.numpy as jnp
import numpy as np

from pallas_kernels.need import Need
from pallas_kernels.ragged_paged_attention import tpu_pool

QUERY_DTYPES = (np.dtype(jnp.float32), np.dtype(jnp.bfloat16))
MAX_HEAD_DIM = 512


def unsupported(need: Need) -> str | None:
    """Why the back end cannot serve this, or None where it can."""
    if need.platform != "tpu":
        return f"the platform is {need.platform}, and the kernel is for TPUs"
    return unsupported_shape(need)


def unsupported_shape(need: Need) -> str | None:
    """The same for any platform: the kernel can be interpreted, and compiled without the chip."""
    if need.head_dim > MAX_HEAD_DIM:
        return f"head_dim={need.head_dim} is more than {MAX_HEAD_DIM}"
    if need.query_dtype is not None and np.dtype(need.query_dtype) not in QUERY_DTYPES:
        return f"the model's {np.dtype(need.query_dtype)} is not one of {', '.join(map(str, QUERY_DTYPES))}"
    return tpu_pool.why_not(need.head_dim, need.block_size, need.kv_dtype)
