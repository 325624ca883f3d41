"""The pools of all data-parallel shards, as one."""

from __future__ import annotations

from collections.abc import Iterable

from jaxengine.scheduler.block_manager import BlockManager
from jaxengine.types import Sequence


class BlockPools(tuple[BlockManager, ...]):
    """One block manager a shard, alike in size. Counts are those of all shards together."""

    __slots__ = ()

    @property
    def block_size(self) -> int:
        return self[0].block_size

    @property
    def capacity(self) -> int:
        """Tokens that fit when one sequence has its shard's pool for itself."""
        return self[0].capacity

    def blocks_for(self, num_tokens: int) -> int:
        return self[0].blocks_for(num_tokens)

    @property
    def num_blocks(self) -> int:
        return sum(pool.num_blocks for pool in self)

    @property
    def num_free(self) -> int:
        return sum(pool.num_free for pool in self)

    @property
    def num_used(self) -> int:
        return sum(pool.num_used for pool in self)

    @property
    def usage(self) -> float:
        """Used blocks over all blocks that can be handed out, 0 to 1."""
        return self.num_used / (self.num_free + self.num_used)

    @property
    def num_queried_tokens(self) -> int:
        return sum(pool.num_queried_tokens for pool in self)

    @property
    def num_hit_tokens(self) -> int:
        return sum(pool.num_hit_tokens for pool in self)

    @property
    def num_evictions(self) -> int:
        return sum(pool.num_evictions for pool in self)

    def waste(self, seqs: Iterable[Sequence]) -> float:
        """Allocated but unused token slots over all allocated ones; `seqs` are those that hold blocks."""
        shares = _by_shard(seqs, len(self))
        wasted = sum(pool.waste(share) * pool.num_used for pool, share in zip(self, shares, strict=True))
        return wasted / max(1, self.num_used)

    def check(self, seqs: Iterable[Sequence]) -> None:
        """Asserts the invariants, given every sequence that holds blocks. For tests: walks the pools."""
        for pool, share in zip(self, _by_shard(seqs, len(self)), strict=True):
            pool.check(share)


def _by_shard(seqs: Iterable[Sequence], num_shards: int) -> list[list[Sequence]]:
    shares: list[list[Sequence]] = [[] for _ in range(num_shards)]
    for seq in seqs:
        shares[seq.shard].append(seq)
    return shares
