"""What a plan holds: budget, order, chunks, forks, preemption, ends, refusals."""

import pytest
from fake_device import expected_output, make_engine, request

from jaxengine.types import FinishReason, SequenceStatus


def lengths(plan) -> list[tuple[int, int]]:
    return [(row.seq_id, row.num_tokens) for row in plan.rows]


def test_decodes_first_then_chunks_in_the_remaining_budget():
    engine = make_engine(max_num_batched_tokens=10)
    engine.add(request("a", [1, 2, 3], arrival=0))
    engine.step()
    engine.add(request("b", [4] * 14, arrival=1))
    engine.add(request("c", [5] * 4, arrival=2))
    for _ in range(3):
        engine.step()
    first, second, third, fourth = engine.plans
    assert lengths(first) == [(0, 3)]
    assert lengths(second) == [(0, 1), (1, 9)]
    assert not second.rows[1].sample
    assert lengths(third) == [(0, 1), (1, 5), (2, 4)]
    assert lengths(fourth) == [(0, 1), (1, 1), (2, 1)]
    assert (second.is_decode, second.shards[0].num_decodes, fourth.is_decode) == (False, 1, True)
    assert [plan.step_id for plan in engine.plans] == [0, 1, 2, 3]


def test_the_next_step_is_planned_before_the_id_is_known():
    engine = make_engine()
    (seq,) = engine.add(request("a", [1, 2, 3]))
    engine.step()
    assert (len(seq.token_ids), seq.num_pending) == (3, 1)
    plan = engine.scheduler.schedule()
    assert plan is not None
    (row,) = plan.rows
    assert (row.start, row.num_tokens, row.sample) == (len(seq.token_ids), 1, True)
    assert seq.num_pending == 2


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_nothing_is_planned_beyond_max_tokens(max_tokens):
    engine = make_engine()
    (seq,) = engine.add(request("a", [1, 2, 3], max_tokens))
    engine.run()
    assert len(seq.output_token_ids) == max_tokens
    assert sum(plan.num_tokens for plan in engine.plans) == 3 + max_tokens - 1
    assert seq.finish_reason is FinishReason.LENGTH


def test_output_ends_at_the_context_or_the_pool():
    engine = make_engine(max_model_len=12)
    (seq,) = engine.add(request("a", [5, 2, 3], max_tokens=None))
    assert seq.max_num_tokens == 12
    engine = make_engine(num_blocks=4, block_size=4)     # 12 tokens, and one that needs no place
    (seq,) = engine.add(request("a", [5, 2, 3], max_tokens=40))
    assert seq.max_num_tokens == 13
    engine.run()
    assert engine.scheduler.num_preemptions == 0
    assert seq.output_token_ids == expected_output(seq)


def test_max_tokens_zero_computes_the_prompt_and_samples_nothing():
    engine = make_engine(max_num_batched_tokens=4)
    seqs = engine.add(request("a", [1] * 6, max_tokens=0, n=2))
    engine.run()
    assert [lengths(plan) for plan in engine.plans] == [[(0, 4)], [(0, 2)]]
    assert not any(row.sample for plan in engine.plans for row in plan.rows)
    assert [seq.finish_reason for seq in seqs] == [FinishReason.LENGTH] * 2


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it():
    engine = make_engine(max_num_batched_tokens=10, enable_chunked_prefill=False)
    engine.add(request("a", [1, 2, 3], max_tokens=3, arrival=0))
    engine.step()
    engine.add(request("b", [4] * 10, max_tokens=2, arrival=1))
    engine.add(request("c", [5] * 2, max_tokens=2, arrival=2))     # would fit, but is not let past
    engine.run()
    chunks = [row.num_tokens for plan in engine.plans for row in plan.rows if row.start == 0]
    assert chunks == [3, 10, 2]
    assert all(seq.output_token_ids == expected_output(seq) for seq in engine.seqs.values())


def test_recomputation_may_be_cut_without_chunked_prefill():
    """A preempted sequence, output included, may be longer than any step: it must still come back."""
    engine = make_engine(
        num_blocks=8, block_size=4, max_num_batched_tokens=8, enable_chunked_prefill=False,
        enable_prefix_caching=False,
    )
    engine.add(request("a", [4] * 6, max_tokens=20, arrival=0))
    engine.add(request("b", [5] * 6, max_tokens=20, arrival=1))
    engine.run()
    assert engine.scheduler.num_preemptions > 0
    assert any(seq.num_preemptions and seq.num_tokens > 9 for seq in engine.seqs.values())
    assert all(seq.output_token_ids == expected_output(seq) for seq in engine.seqs.values())


def test_n_sequences_prefill_once_and_fork():
    engine = make_engine(max_num_seqs=4, max_num_batched_tokens=8)
    parent, *children = engine.add(request("a", [3] * 10, max_tokens=4, n=3))
    other, = engine.add(request("b", [4] * 2, max_tokens=2, n=1, arrival=1))
    engine.step()
    assert engine.plans[0].shards[0].forks == ()
    assert [child.status for child in children] == [SequenceStatus.WAITING] * 2
    engine.step()
    plan = engine.plans[1]
    assert lengths(plan) == [(0, 2), (3, 2)]
    assert plan.shards[0].forks == tuple((0, child.seq_id, child.slot) for child in children)
    assert len({seq.slot for seq in (parent, other, *children)}) == 4
    engine.step()
    partial = plan.rows[0].start // 4     # the block that holds positions 8 and 9
    assert len(engine.plans[2].shards[0].copies) == 2
    assert len({seq.block_table[partial] for seq in (parent, *children)}) == 3
    assert len({seq.block_table[0] for seq in (parent, *children)}) == 1
    engine.run()
    outputs = [seq.output_token_ids for seq in (parent, *children)]
    assert outputs == [expected_output(seq) for seq in (parent, *children)]
    assert len({tuple(output) for output in outputs}) == 3


def test_a_group_waits_until_it_has_all_its_slots():
    engine = make_engine(max_num_seqs=3)
    engine.add(request("a", [1, 2], max_tokens=4, arrival=0))
    engine.step()
    group = engine.add(request("b", [3, 4], max_tokens=2, n=3, arrival=1))
    late, = engine.add(request("c", [5, 6], max_tokens=2, arrival=2))
    engine.step()
    assert [seq.slot for seq in (*group, late)] == [-1] * 4     # one that would fit does not pass it by
    engine.run()
    assert group[0].first_scheduled_time <= late.first_scheduled_time
    assert all(seq.output_token_ids == expected_output(seq) for seq in engine.seqs.values())


def test_the_latest_arrival_is_preempted_and_comes_back_first():
    engine = make_engine(num_blocks=8, block_size=4, max_num_batched_tokens=32, enable_prefix_caching=False)
    first, = engine.add(request("a", [6] * 8, max_tokens=12, arrival=0))
    second, = engine.add(request("b", [7] * 8, max_tokens=12, arrival=1))
    third, = engine.add(request("c", [8] * 8, max_tokens=12, arrival=2))
    engine.run()
    preempted = [seq_id for plan in engine.plans for seq_id in plan.preempted]
    assert preempted
    assert first.seq_id not in preempted
    assert first.num_preemptions == 0
    starts = [row.seq_id for plan in engine.plans for row in plan.rows if row.start == 0]
    assert starts.index(third.seq_id) > max(i for i, s in enumerate(starts) if s == first.seq_id)
    assert engine.scheduler.num_preemptions == second.num_preemptions + third.num_preemptions
    for plan in engine.plans:     # nobody comes back in the call that preempted
        assert not plan.preempted or all(row.start > 0 for row in plan.rows)
    assert all(seq.output_token_ids == expected_output(seq) for seq in engine.seqs.values())


def test_a_group_preempted_before_it_forks_gives_all_its_slots_back():
    engine = make_engine(num_blocks=9, block_size=4, max_num_seqs=3, max_num_batched_tokens=3)
    engine.add(request("a", [4] * 3, max_tokens=24, arrival=0))
    for _ in range(2):
        engine.step()
    group = engine.add(request("b", [5] * 20, max_tokens=3, n=2, arrival=1))
    engine.step()
    assert all(seq.slot >= 0 for seq in group)
    while not group[0].num_preemptions:
        engine.step()
        assert not engine.plans[-1].shards[0].forks
    assert [seq.slot for seq in group] == [-1, -1]
    engine.run()
    assert sum(len(plan.shards[0].forks) for plan in engine.plans) == 1
    assert all(seq.output_token_ids == expected_output(seq) for seq in engine.seqs.values())


def test_a_preempted_sequence_finds_its_own_blocks_again():
    def computed(**settings) -> int:
        engine = make_engine(num_blocks=10, block_size=2, max_num_batched_tokens=32, **settings)
        for i in range(2):
            engine.add(request(f"r{i}", [6 + i] * 6, max_tokens=10, arrival=float(i)))
        engine.run()
        assert engine.scheduler.num_preemptions > 0
        assert all(seq.output_token_ids == expected_output(seq) for seq in engine.seqs.values())
        return sum(plan.num_tokens for plan in engine.plans)

    assert computed(enable_prefix_caching=True) < computed(enable_prefix_caching=False)


def test_a_second_request_reuses_the_prefix():
    engine = make_engine(block_size=4)
    engine.add(request("a", [1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=2))
    engine.run()
    seq, = engine.add(request("b", [1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=2))
    engine.run()
    assert seq.num_cached_tokens == 8
    assert engine.plans[-2].rows[0].start == 8
    assert engine.plans[-2].is_decode     # one token is left: a decode step serves it


def test_output_is_reused_by_the_next_turn():
    engine = make_engine(block_size=4)
    seq, = engine.add(request("a", [1, 2, 3, 4, 6], max_tokens=8))
    engine.run()
    assert len(seq.token_ids) == 13
    follow, = engine.add(request("b", [*seq.token_ids, 9], max_tokens=2))
    engine.run()
    assert follow.num_cached_tokens == 12     # the last id of the first turn was never computed


def test_abort_at_any_moment_returns_everything():
    for moment in range(12):
        engine = make_engine(max_num_seqs=4, max_num_batched_tokens=6)
        seqs = engine.add(request("a", [1] * 10, max_tokens=6, n=3))
        other, = engine.add(request("b", [2] * 3, max_tokens=6, arrival=1))
        for _ in range(moment):
            engine.step()
        unfinished = [seq for seq in seqs if not seq.is_finished]
        assert engine.scheduler.abort("a") == unfinished
        assert all(seq.finish_reason is FinishReason.ABORT for seq in unfinished)
        assert engine.scheduler.abort("a") == []
        known = [list(seq.token_ids) for seq in seqs]
        engine.run()
        assert [seq.token_ids for seq in seqs] == known     # ids that came later were dropped
        assert other.output_token_ids == expected_output(other)
        assert engine.scheduler.pools[0].num_used == 0
        assert engine.add(request("c", [1] * 10, n=4))[0].seq_id == 4
        engine.run()


def test_a_sibling_may_end_before_it_was_forked():
    engine = make_engine(max_num_seqs=3, max_num_batched_tokens=4)
    parent, child, last = engine.add(request("a", [3] * 6, max_tokens=3, n=3))
    engine.step()
    engine.scheduler.finish(child, FinishReason.ABORT)
    engine.run()
    assert child.output_token_ids == []
    assert [seq.output_token_ids for seq in (parent, last)] == [expected_output(seq) for seq in (parent, last)]
    assert [fork[1] for plan in engine.plans for fork in plan.shards[0].forks] == [last.seq_id]


def test_siblings_end_with_the_one_that_prefills_for_them():
    engine = make_engine(max_num_batched_tokens=4)
    seqs = engine.add(request("a", [3] * 6, n=3))
    engine.step()
    engine.scheduler.finish(seqs[0], FinishReason.ERROR, register=False)
    assert [seq.finish_reason for seq in seqs] == [FinishReason.ERROR] * 3
    assert not engine.scheduler.has_unfinished
    engine.run()


def test_a_failed_sequence_leaves_nothing_in_the_prefix_cache():
    engine = make_engine(block_size=4, max_num_batched_tokens=8)
    seq, = engine.add(request("a", [3] * 20))
    for _ in range(2):
        engine.step()
    assert engine.scheduler.pools[0].match(seq)     # its first chunk was read and registered
    engine.scheduler.finish(seq, FinishReason.ERROR, register=False)
    assert engine.scheduler.pools[0].match(seq) == []
    engine.run()
    assert engine.scheduler.pools[0].match(seq) == []


def test_views_are_read_only():
    engine = make_engine(max_num_seqs=1)
    for i in range(3):
        engine.add(request(f"r{i}", [1, 2], arrival=float(-i)))
    engine.step()
    scheduler = engine.scheduler
    assert [seq.seq_id for seq in scheduler.running] == [2]
    assert [seq.seq_id for seq in scheduler.waiting] == [1, 0]
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 2)
    assert isinstance(scheduler.running, tuple)


@pytest.mark.parametrize(
    ("settings", "fields", "numbers"),
    [
        ({"max_model_len": 8}, {"prompt": [1] * 8}, ("8 tokens", "max_model_len=8")),
        ({"num_blocks": 3, "block_size": 4}, {"prompt": [1] * 9}, ("9 tokens", "holds 8")),
        ({"max_num_seqs": 2}, {"prompt": [1], "n": 3}, ("n=3", "max_num_seqs=2")),
        ({"max_num_batched_tokens": 4, "enable_chunked_prefill": False}, {"prompt": [1] * 5},
         ("5 tokens", "max_num_batched_tokens=4")),
        ({"policy": "fcfs"}, {"prompt": [1], "priority": 2}, ("priority=2", "policy='fcfs'")),
        ({}, {"prompt": [1], "priority": 2**31}, ("priority=2147483648", "2147483647")),
        ({}, {"prompt": []}, ("prompt_token_ids", "at least one")),
    ],
)
def test_what_can_never_be_served_is_refused(settings, fields, numbers):
    engine = make_engine(**settings)
    with pytest.raises(ValueError, match=".*".join(numbers)):
        engine.add(request("a", **fields))
    assert not engine.scheduler.has_unfinished


def test_what_just_fits_is_served():
    engine = make_engine(num_blocks=3, block_size=4, max_model_len=9, max_num_batched_tokens=8,
                         enable_chunked_prefill=False)
    seq, = engine.add(request("a", [1] * 8, max_tokens=None))
    engine.run()
    assert len(seq.output_token_ids) == 1
    engine = make_engine(max_model_len=8)
    engine.add(request("a", [1] * 8, max_tokens=0))     # scoring needs no room for output
    engine.run()


def test_a_request_id_in_use_is_refused():
    engine = make_engine()
    engine.add(request("a", [1]))
    with pytest.raises(ValueError, match="request_id='a'"):
        engine.add(request("a", [2]))
    engine.run()
    engine.add(request("a", [2]))


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match=r"policy='lottery'.*fcfs, priority"):
        make_engine(policy="lottery")
