"""A shard's part of a step while it is planned, and what the shard could take besides."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxengine.scheduler.block_manager import BlockManager
from jaxengine.types import PlannedRow, ShardPlan


@dataclass
class Draft:
    """A ShardPlan being made. `budget`: tokens left for chunks of prefill."""

    shard: int
    pool: BlockManager
    budget: int
    decodes: list[PlannedRow] = field(default_factory=list)   # rows of one token
    chunks: list[PlannedRow] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    forks: list[tuple[int, int, int]] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    reserved: int = 0          # blocks that are not for newcomers; set when there are any

    def plan(self) -> ShardPlan:
        rows = (*self.decodes, *self.chunks)
        return ShardPlan(rows, len(self.decodes), tuple(self.copies), tuple(self.forks))


@dataclass(frozen=True)
class Offer:
    """What a shard can do for a waiting sequence now. `load`: blocks it would use with it, by which shards compare."""

    draft: Draft
    prefix: list[int]      # blocks to adopt
    num_tokens: int        # of the first chunk
    load: int
