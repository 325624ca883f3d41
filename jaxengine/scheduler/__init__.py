"""What runs next and in which blocks. Host only: plain Python, no jax, no numpy."""

from jaxengine.scheduler.block_manager import NULL_BLOCK, BlockManager
from jaxengine.scheduler.block_pools import BlockPools
from jaxengine.scheduler.buckets import decode_buckets, pick, row_buckets, token_buckets
from jaxengine.scheduler.policies import POLICIES
from jaxengine.scheduler.scheduler import Scheduler

__all__ = [
    "NULL_BLOCK",
    "POLICIES",
    "BlockManager",
    "BlockPools",
    "Scheduler",
    "decode_buckets",
    "pick",
    "row_buckets",
    "token_buckets",
]
