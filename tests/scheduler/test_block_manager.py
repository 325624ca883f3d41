"""The block manager alone: prefix hits, eviction order, salt, copy on write, waste."""

import pytest
from fake_device import make_engine, request

from jaxengine.scheduler import NULL_BLOCK, BlockManager
from jaxengine.types import SamplingParams, Sequence

BLOCK = 4


def sequence(prompt: list[int], **fields) -> Sequence:
    return Sequence(0, request("r", prompt, **fields))


def compute(blocks: BlockManager, seq: Sequence, num_tokens: int) -> list[tuple[int, int]]:
    """Allocates for and "computes" the next num_tokens; returns the copies this took."""
    copies: list[tuple[int, int]] = []
    assert blocks.allocate(seq, num_tokens, copies)
    seq.num_computed_tokens += num_tokens
    return copies


def fill(blocks: BlockManager, prompt: list[int], **fields) -> list[int]:
    """Computes, registers and frees a prompt; returns the blocks it had."""
    seq = sequence(prompt, **fields)
    compute(blocks, seq, len(prompt))
    blocks.register(seq, len(prompt))
    table = list(seq.block_table)
    blocks.free(seq)
    return table


def start(blocks: BlockManager, prompt: list[int], **fields) -> Sequence:
    """Adopts what is cached of a prompt and computes the rest."""
    seq = sequence(prompt, **fields)
    prefix = blocks.match(seq)
    blocks.adopt(seq, prefix)
    seq.num_computed_tokens = len(prefix) * BLOCK
    compute(blocks, seq, len(prompt) - seq.num_computed_tokens)
    return seq


def test_a_block_is_taken_only_when_its_first_token_is_planned():
    blocks = BlockManager(8, BLOCK)
    seq = sequence(list(range(1, 20)))
    for num_tokens, num_blocks in [(3, 1), (1, 1), (1, 2), (4, 3)]:
        compute(blocks, seq, num_tokens)
        assert len(seq.block_table) == num_blocks
    assert NULL_BLOCK not in seq.block_table
    blocks.check([seq])


def test_allocation_is_all_or_nothing():
    blocks = BlockManager(4, BLOCK)
    seq = sequence(list(range(1, 20)))
    assert blocks.room(seq) == blocks.capacity == 12
    assert not blocks.allocate(seq, 13, [])
    assert seq.block_table == []
    blocks.check([seq])
    assert blocks.allocate(seq, 12, [])
    assert blocks.num_free == 0
    assert blocks.usage == 1.0


def test_prefix_hits_cover_full_blocks_only_and_are_counted():
    blocks = BlockManager(16, BLOCK)
    table = fill(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    assert blocks.num_used == 0
    seq = start(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    assert seq.block_table[:2] == table[:2]
    other = start(blocks, [1, 2, 3, 4, 5, 6, 7, 0, 9, 10])     # differs in the second block
    assert other.block_table[0] == table[0]
    assert other.block_table[1] != table[1]
    assert start(blocks, [9, 2, 3, 4, 5, 6, 7, 8, 9]).block_table[0] != table[0]
    assert (blocks.num_queried_tokens, blocks.num_hit_tokens) == (29, 8 + 4)


def test_the_same_block_of_ids_after_another_prefix_is_no_hit():
    blocks = BlockManager(16, BLOCK)
    fill(blocks, [1, 2, 3, 4, 5, 6, 7, 8])
    fill(blocks, [9, 9, 9, 9])
    assert len(blocks.match(sequence([9, 9, 9, 9, 5, 6, 7, 8, 1]))) == 1
    assert blocks.match(sequence([5, 6, 7, 8, 1])) == []


def test_a_wholly_cached_prompt_still_computes_its_end():
    blocks = BlockManager(16, BLOCK)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    table = fill(blocks, prompt)
    seq = sequence(prompt)
    assert blocks.match(seq) == table[:1]
    seq.token_ids.append(9)     # one more token, and both are full
    assert blocks.match(seq) == table


def test_salts_never_share():
    blocks = BlockManager(32, BLOCK)
    prompt = [1, 2, 3, 4, 5]
    fill(blocks, prompt)
    fill(blocks, prompt, cache_salt="a")
    tables = [start(blocks, prompt, cache_salt=salt).block_table[0] for salt in (None, "a", "b", "", "\ud800")]
    assert len(set(tables)) == 5
    assert blocks.num_hit_tokens == 2 * BLOCK     # of None and "a"


def test_prompt_logprobs_compute_every_position():
    blocks = BlockManager(16, BLOCK)
    fill(blocks, [1, 2, 3, 4, 5])
    seq = sequence([1, 2, 3, 4, 5])
    assert blocks.match(seq)
    seq.request.params = SamplingParams(prompt_logprobs=1)
    assert blocks.match(seq) == []


def test_without_prefix_caching_nothing_is_found():
    blocks = BlockManager(16, BLOCK, enable_prefix_caching=False)
    fill(blocks, [1, 2, 3, 4, 5])
    assert start(blocks, [1, 2, 3, 4, 5]).num_computed_tokens == 5
    assert (blocks.num_queried_tokens, blocks.num_hit_tokens) == (0, 0)


def test_eviction_takes_the_least_recently_used_and_tails_before_prefixes():
    blocks = BlockManager(7, BLOCK)     # six blocks
    old = fill(blocks, [1, 2, 3, 4, 5, 6, 7, 8])
    new = fill(blocks, [11, 12, 13, 14, 15, 16, 17, 18])
    blocks.free(start(blocks, [1, 2, 3, 4, 0]))     # touches the first block of the older one
    assert blocks.num_evictions == 0
    order = []
    seq = sequence(list(range(100, 124)))
    while blocks.num_free:
        compute(blocks, seq, BLOCK)
        order.append(seq.block_table[-1])
    # Two that never were registered, then the old tail, the newer one tail first, and what was touched last.
    assert order[2:] == [old[1], new[1], new[0], old[0]]
    assert blocks.num_evictions == 4
    assert blocks.match(sequence([1, 2, 3, 4, 5, 6, 7, 8, 9])) == []
    blocks.check([seq])


def test_a_block_in_use_is_not_evicted():
    blocks = BlockManager(4, BLOCK)
    fill(blocks, [1, 2, 3, 4])
    seq = start(blocks, [1, 2, 3, 4, 5])
    other = sequence(list(range(50, 60)))
    assert blocks.room(other) == BLOCK
    compute(blocks, other, BLOCK)
    assert not blocks.allocate(other, 1, [])
    assert blocks.match(sequence([1, 2, 3, 4, 5])) == seq.block_table[:1]


def test_blocks_are_found_only_after_register():
    blocks = BlockManager(16, BLOCK)
    seq = start(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert blocks.match(seq) == []
    blocks.register(seq, 7)     # the second block is not read yet
    assert blocks.match(seq) == seq.block_table[:1]


def test_equal_prefixes_computed_at_once_register_one_block_each():
    blocks = BlockManager(16, BLOCK)
    first, second = start(blocks, [1, 2, 3, 4, 5]), start(blocks, [1, 2, 3, 4, 5])
    blocks.register(first, 5)
    blocks.register(second, 5)
    blocks.check([first, second])
    assert blocks.match(second) == first.block_table[:1]
    blocks.free(first)
    blocks.free(second)
    blocks.check([])


def test_forget_drops_used_and_cached_blocks():
    blocks = BlockManager(16, BLOCK)
    seq = start(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    blocks.register(seq, 9)
    blocks.forget(seq)
    assert blocks.match(seq) == []
    blocks.check([seq])
    blocks.register(seq, 9)     # it registered these already: a failed sequence does not come back
    assert blocks.match(seq) == []
    again = start(blocks, [1, 2, 3, 4, 5])
    blocks.register(again, 5)
    blocks.free(again)
    blocks.forget(again)
    blocks.check([seq])
    assert blocks.match(again) == []


def test_the_first_to_write_into_a_shared_block_gets_a_copy():
    blocks = BlockManager(16, BLOCK)
    parent = start(blocks, [1, 2, 3, 4, 5, 6])
    children = [sequence([1, 2, 3, 4, 5, 6]) for _ in range(2)]
    for child in children:
        blocks.fork(parent, child)
        child.num_computed_tokens = 6
        assert child.block_table == parent.block_table
    full, partial = parent.block_table
    assert blocks.num_used == 2

    family = [parent, *children]
    copies = [compute(blocks, seq, 1) for seq in family]
    assert copies == [[(partial, parent.block_table[1])], [(partial, children[0].block_table[1])], []]
    assert children[1].block_table == [full, partial]     # the last one needs no copy
    assert len({seq.block_table[1] for seq in family}) == 3
    assert {seq.block_table[0] for seq in family} == {full}
    blocks.check(family)
    for seq in family:
        blocks.free(seq)
    blocks.check([])


def test_no_copy_where_the_shared_part_ends_with_a_block():
    blocks = BlockManager(16, BLOCK)
    parent, child = start(blocks, [1, 2, 3, 4]), sequence([1, 2, 3, 4])
    blocks.fork(parent, child)
    child.num_computed_tokens = 4
    assert compute(blocks, parent, 1) == compute(blocks, child, 1) == []
    assert parent.block_table[0] == child.block_table[0]
    assert parent.block_table[1] != child.block_table[1]


def test_a_copy_needs_a_free_block():
    blocks = BlockManager(3, BLOCK)
    parent, child = start(blocks, [1, 2, 3, 4, 5]), sequence([1, 2, 3, 4, 5])
    blocks.fork(parent, child)
    child.num_computed_tokens = 5
    assert blocks.room(parent) <= 0
    assert not blocks.allocate(parent, 1, [])
    blocks.free(child)
    assert compute(blocks, parent, 1) == []


def test_waste_counts_each_block_once():
    blocks = BlockManager(16, BLOCK)
    parent, child = start(blocks, [1, 2, 3, 4, 5]), sequence([1, 2, 3, 4, 5])
    assert blocks.waste([parent]) == 3 / 8
    blocks.fork(parent, child)
    child.num_computed_tokens = 5
    assert blocks.waste([parent, child]) == 3 / 8
    compute(blocks, parent, 1)
    assert blocks.waste([parent, child]) == (2 + 3) / 12


def test_waste_is_below_four_percent_from_512_tokens_on():
    engine = make_engine(
        num_blocks=2048, block_size=16, max_num_seqs=32, max_num_batched_tokens=4096, max_model_len=1024
    )
    for i in range(40):
        engine.add(request(f"r{i}", [1 + i % 40] * (512 + 7 * i), max_tokens=16, arrival=float(i)))
    worst = 0.0
    while engine.step():
        worst = max(worst, engine.scheduler.waste())
    assert 0 < worst < 0.04


@pytest.mark.parametrize(("num_blocks", "block_size", "named"), [(1, 4, "num_blocks=1"), (4, 0, "block_size=0")])
def test_a_pool_without_room_is_refused(num_blocks, block_size, named):
    with pytest.raises(ValueError, match=named):
        BlockManager(num_blocks, block_size)
