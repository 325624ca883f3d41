"""Which block of the KV pool belongs to whom: reference counts, prefix reuse and copy on write.

Block ids index axis 0 of the pool and are local to it. One manager serves one pool of one kind of layer;
nothing here knows what a block holds, so cache groups, per-shard pools or swapping are further managers or
further states of a block.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from jaxengine.types import Sequence

NULL_BLOCK = 0   # padding reads and writes it; never handed out
_DIGEST_SIZE = 32


class BlockManager:
    """Hands out the blocks 1 .. num_blocks - 1 of `block_size` tokens each.

    A block is *used* (referenced by block tables), *cached* (unreferenced, but its contents can still be
    found by their hash; evicted in least-recently-freed order) or *empty*. The last two are free.

    Full blocks are never written again, so they are shared as they are. Only `fork` shares a partial block;
    whoever writes into it first moves to a copy.

    Counters, since construction: `num_queried_tokens` and `num_hit_tokens` of first admissions, and
    `num_evictions` in blocks.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks={num_blocks} must be at least 2: block 0 is the null block")
        if block_size < 1:
            raise ValueError(f"block_size={block_size} must be at least 1 token")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self.num_evictions = 0
        self._refs = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks        # of registered blocks, used or cached
        self._block_of: dict[bytes, int] = {}                          # the inverse of _digests
        self._empty = list(range(num_blocks - 1, NULL_BLOCK, -1))      # a stack: the lowest id on top
        self._cached: OrderedDict[int, None] = OrderedDict()           # next to be evicted first

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - self.num_free

    @property
    def capacity(self) -> int:
        """Tokens that fit when one sequence has the pool for itself."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def usage(self) -> float:
        """Used blocks over all blocks that can be handed out, 0 to 1."""
        return self.num_used / (self.num_blocks - 1)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # --- allocation -------------------------------------------------------------------------------------

    def room(self, seq: Sequence) -> int:
        """How many further tokens `allocate` would grant `seq` now."""
        blocks = len(seq.block_table) + self.num_free - self._must_copy(seq)
        return blocks * self.block_size - seq.num_computed_tokens

    def allocate(self, seq: Sequence, num_tokens: int, copies: list[tuple[int, int]]) -> bool:
        """Makes the `num_tokens` positions from seq.num_computed_tokens on writable, or returns False.

        Appends (source, destination) to `copies` where the first of them lies in a shared block. The copies
        of one plan may run in order or all at once (every source read before any destination is written).
        """
        table = seq.block_table
        must_copy = self._must_copy(seq)
        new = self.blocks_for(seq.num_computed_tokens + num_tokens) - len(table)
        if new == 0 and not must_copy:   # as most decodes
            return True
        if new + must_copy > self.num_free:
            return False
        if must_copy:
            at = seq.num_computed_tokens // self.block_size
            source, table[at] = table[at], self._pop_free()
            self._refs[source] -= 1
            copies.append((source, table[at]))
        for _ in range(new):
            table.append(self._pop_free())
        return True

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Gives `child` all of the parent's blocks, the partial last one included."""
        child.block_table[:] = parent.block_table
        child.block_hashes[:] = parent.block_hashes
        child.num_registered_blocks = parent.num_registered_blocks
        for block in child.block_table:
            self._refs[block] += 1

    def free(self, seq: Sequence) -> None:
        """Takes all blocks from `seq`. The tail is freed first, so that prefixes outlive their tails."""
        for block in reversed(seq.block_table):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._push_free(block)
        seq.block_table.clear()

    def _must_copy(self, seq: Sequence) -> bool:
        at = seq.num_computed_tokens // self.block_size
        return at < len(seq.block_table) and self._refs[seq.block_table[at]] > 1

    def _pop_free(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._drop_digest(block)
            self.num_evictions += 1
        self._refs[block] = 1
        return block

    def _push_free(self, block: int) -> None:
        if self._digests[block] is None:
            self._empty.append(block)
        else:
            self._cached[block] = None

    # --- prefix reuse -----------------------------------------------------------------------------------

    def match(self, seq: Sequence) -> list[int]:
        """The registered blocks that hold a prefix of the sequence's known ids; takes no references.

        Leaves at least one token to compute, since a step must yield logits. Requests for prompt logprobs
        need every position computed and match nothing.
        """
        if not self.enable_prefix_caching or seq.request.params.prompt_logprobs is not None:
            return []
        num_blocks = (len(seq.token_ids) - 1) // self.block_size
        self._extend_hashes(seq, num_blocks)
        blocks = []
        for digest in seq.block_hashes[:num_blocks]:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_cached_of(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free now, so that adopting them uses up free blocks."""
        return sum(self._refs[block] == 0 for block in blocks)

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        """Starts the table of `seq` with blocks that `match` found."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1
        seq.block_table[:] = blocks
        seq.num_registered_blocks = len(blocks)
        if self.enable_prefix_caching and seq.num_preemptions == 0:
            self.num_queried_tokens += seq.num_tokens
            self.num_hit_tokens += len(blocks) * self.block_size

    def register(self, seq: Sequence, num_tokens: int) -> None:
        """Lets others find the full blocks among the first `num_tokens` tokens of `seq`.

        To be called once the step that computed them has been read. Their ids must be known.
        """
        num_full = num_tokens // self.block_size
        if num_full <= seq.num_registered_blocks or not self.enable_prefix_caching:
            return
        self._extend_hashes(seq, num_full)
        for at in range(seq.num_registered_blocks, num_full):
            digest, block = seq.block_hashes[at], seq.block_table[at]
            # Two sequences may compute the same prefix at once: the first block found stays the one.
            if digest not in self._block_of and self._digests[block] is None:
                self._block_of[digest] = block
                self._digests[block] = digest
        seq.num_registered_blocks = num_full

    def forget(self, seq: Sequence) -> None:
        """Makes everything the sequence has computed or reused unfindable, because it may be wrong."""
        for digest in seq.block_hashes:
            block = self._block_of.get(digest)
            if block is not None:
                self._drop_digest(block)
                if block in self._cached:
                    del self._cached[block]
                    self._empty.append(block)

    def _drop_digest(self, block: int) -> None:
        digest = self._digests[block]
        assert digest is not None
        del self._block_of[digest]
        self._digests[block] = None

    def _extend_hashes(self, seq: Sequence, num_blocks: int) -> None:
        """Chained digests: each covers its block's ids and, through its parent, all before them.

        The root covers what besides the ids decides the contents: today the salt, one day an adapter. A
        cryptographic hash, because whoever crafts a collision would read another request's cache.
        """
        hashes, size = seq.block_hashes, self.block_size
        while len(hashes) < num_blocks:
            at = len(hashes) * size
            parent = hashes[-1] if hashes else _root_digest(seq.request.cache_salt)
            ids = array("i", seq.token_ids[at:at + size]).tobytes()
            hashes.append(blake2b(parent + ids, digest_size=_DIGEST_SIZE).digest())

    # --- figures and invariants -------------------------------------------------------------------------

    def waste(self, seqs: Iterable[Sequence]) -> float:
        """Allocated but unused token slots over all allocated ones; `seqs` are those that hold blocks."""
        unused = {s.block_table[-1]: len(s.block_table) * self.block_size - s.num_computed_tokens
                  for s in seqs if s.block_table}
        return sum(unused.values()) / max(1, self.num_used * self.block_size)

    def check(self, seqs: Iterable[Sequence]) -> None:
        """Asserts the invariants, given every sequence that holds blocks. For tests: walks the pool."""
        refs = [0] * self.num_blocks
        for seq in seqs:
            assert len(set(seq.block_table)) == len(seq.block_table), f"{seq.seq_id}: a block twice"
            for block in seq.block_table:
                refs[block] += 1
        assert refs[NULL_BLOCK] == 0, "the null block was handed out"
        assert refs == self._refs, "reference counts differ from the block tables"
        free = [*self._empty, *self._cached]
        assert sorted(free) == [b for b in range(1, self.num_blocks) if refs[b] == 0], "a block is lost"
        assert all(self._digests[b] is None for b in self._empty), "an empty block has a hash"
        registered = {d: b for b, d in enumerate(self._digests) if d is not None}
        assert registered == self._block_of, "the prefix cache and the blocks' hashes differ"
        assert set(self._cached) <= set(registered.values()), "a cached block has no hash"


def _root_digest(cache_salt: str | None) -> bytes:
    if cache_salt is None:
        return bytes(_DIGEST_SIZE)
    # surrogatepass: a salt comes from the outside as any JSON string, and must not stop a step
    return blake2b(cache_salt.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_SIZE).digest()
