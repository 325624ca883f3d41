"""Data parallelism as the scheduler sees it: one queue, several pools, a sequence on one shard for life."""

from fake_device import FakeEngine, expected_output, make_engine, request

from jaxengine.types import UNASSIGNED


def shards_of(engine: FakeEngine) -> dict[str, int]:
    return {seq.request.request_id: seq.shard for seq in engine.seqs.values()}


def check_outputs(engine: FakeEngine) -> None:
    for seq in engine.seqs.values():
        assert seq.output_token_ids == expected_output(seq)


def test_newcomers_go_where_the_fewest_blocks_are_used():
    engine = make_engine(num_shards=2, max_num_seqs=4, max_num_batched_tokens=64)
    for name, length in [("long", 20), ("a", 8), ("b", 8), ("c", 8), ("d", 8)]:
        engine.add(request(name, [len(name)] * length, arrival=len(engine.seqs)))
    assert {seq.shard for seq in engine.seqs.values()} == {UNASSIGNED}
    engine.step()
    assert shards_of(engine) == {"long": 0, "a": 1, "b": 1, "c": 1, "d": 0}      # 5 blocks; 2, 4, 6; 7 against 8
    engine.run()
    check_outputs(engine)


def test_each_shard_has_its_own_budget_and_slots():
    engine = make_engine(num_shards=2, max_num_seqs=2, max_num_batched_tokens=16)
    for i in range(5):
        engine.add(request(f"r{i}", [i + 1] * 8, arrival=i))
    engine.step()
    (plan,) = engine.plans
    assert [shard.num_tokens for shard in plan.shards] == [16, 16]
    assert [[row.slot for row in shard.rows] for shard in plan.shards] == [[0, 1], [2, 3]]
    assert engine.scheduler.num_waiting == 1
    engine.run()
    check_outputs(engine)


def test_a_prefix_draws_to_its_shard_until_that_is_fuller_than_the_prefix_is_long():
    engine = make_engine(num_shards=2, max_num_seqs=4, max_num_batched_tokens=64)
    prefix = [3] * 12      # three blocks
    engine.add(request("other", [9] * 8, max_tokens=40, arrival=0))
    engine.add(request("first", [*prefix, 1], max_tokens=1, arrival=1))
    for _ in range(3):
        engine.step()
    assert shards_of(engine) == {"other": 0, "first": 1}
    engine.add(request("again", [*prefix, 2], max_tokens=30, arrival=2))
    engine.step()
    again = next(seq for seq in engine.seqs.values() if seq.request.request_id == "again")
    assert (again.shard, again.num_cached_tokens) == (1, 12)
    for i in range(3):      # far more than the prefix saves
        engine.add(request(f"more{i}", [*prefix, 5 + i], max_tokens=20, arrival=3 + i))
    engine.step()
    assert set(shards_of(engine).values()) == {0, 1}
    engine.run()
    check_outputs(engine)


def test_siblings_share_a_shard_and_its_blocks():
    engine = make_engine(num_shards=2, max_num_seqs=4)
    engine.add(request("one", [1] * 6, arrival=0))
    engine.add(request("three", [2] * 6, n=3, arrival=1))
    engine.step()
    assert {seq.shard for seq in engine.seqs.values() if seq.request.request_id == "three"} == {1}
    engine.run()
    assert any(shard.copies for plan in engine.plans for shard in plan.shards[1:])
    assert not any(plan.shards[0].copies for plan in engine.plans)
    check_outputs(engine)


def test_preemption_stays_within_a_shard():
    engine = make_engine(num_blocks=9, num_shards=2, max_num_seqs=2, max_num_batched_tokens=32, max_model_len=40)
    for i in range(4):
        engine.add(request(f"r{i}", [i + 1] * 8, max_tokens=16, arrival=i))
    engine.step()
    at_first = shards_of(engine)
    assert sorted(at_first.values()) == [0, 0, 1, 1]
    engine.run()
    assert engine.scheduler.num_preemptions == 2
    assert shards_of(engine) == at_first
    check_outputs(engine)


def test_one_that_waits_for_its_shard_holds_back_nobody_elsewhere():
    engine = make_engine(num_blocks=9, num_shards=2, max_num_seqs=2, max_num_batched_tokens=32, max_model_len=40)
    engine.add(request("a", [1] * 8, max_tokens=20, arrival=0))
    engine.add(request("b", [2] * 4, max_tokens=2, arrival=1))
    engine.add(request("c", [3] * 8, max_tokens=20, arrival=2))
    engine.step()
    assert shards_of(engine) == {"a": 0, "b": 1, "c": 1}
    engine.add(request("d", [4] * 12, max_tokens=8, arrival=3))
    while not engine.scheduler.num_preemptions:
        assert engine.step()
    preempted = next(seq for seq in engine.seqs.values() if seq.num_preemptions)
    engine.add(request("late", [5] * 4, max_tokens=2, arrival=9))
    while not preempted.num_computed_tokens:
        engine.step()
    late = next(seq for seq in engine.seqs.values() if seq.request.request_id == "late")
    assert late.first_scheduled_time is not None
    assert late.shard != preempted.shard
    engine.run()
    check_outputs(engine)
