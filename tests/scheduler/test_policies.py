"""Policies: who goes first, and that nobody waits for ever."""

from fake_device import expected_output, make_engine, request
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.config import SchedulerConfig
from jaxengine.scheduler import POLICIES
from jaxengine.scheduler.policies import SECONDS_PER_PRIORITY_CLASS
from jaxengine.types import Sequence


def served(engine) -> list[str]:
    """Request ids in the order of their first row."""
    ids = [engine.seqs[row.seq_id].request.request_id for plan in engine.plans for row in plan.rows]
    return list(dict.fromkeys(ids))


def test_priorities_are_honoured_by_default():
    assert SchedulerConfig().policy == "priority"


def test_fcfs_goes_by_arrival():
    engine = make_engine(max_num_seqs=1, policy="fcfs")
    for name, arrival in [("c", 3.0), ("a", 1.0), ("b", 2.0)]:
        engine.add(request(name, [1, 2], max_tokens=2, arrival=arrival))
    engine.run()
    assert served(engine) == ["a", "b", "c"]


def test_lower_priority_numbers_first_and_by_arrival_within_one():
    engine = make_engine(max_num_seqs=1)
    for name, priority, arrival in [("d", 1, 0.0), ("c", 0, 3.0), ("b", 0, 2.0), ("a", -1, 4.0)]:
        engine.add(request(name, [1, 2], max_tokens=2, arrival=arrival, priority=priority))
    engine.run()
    assert served(engine) == ["a", "b", "c", "d"]


def test_the_low_class_is_preempted_first():
    engine = make_engine(num_blocks=6, block_size=4, max_num_batched_tokens=32)
    low, = engine.add(request("low", [6] * 4, max_tokens=12, arrival=0.0, priority=1))
    high, = engine.add(request("high", [7] * 4, max_tokens=12, arrival=1.0))
    engine.run()
    assert (low.num_preemptions > 0, high.num_preemptions) == (True, 0)
    assert all(seq.output_token_ids == expected_output(seq) for seq in (low, high))


@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 200)), min_size=2, max_size=6))
def test_every_policy_is_a_total_order_that_keeps_arrival_within_a_class(pairs):
    seqs = [Sequence(i, request(f"r{i}", [1], arrival=a, priority=p)) for i, (p, a) in enumerate(pairs)]
    for policy in POLICIES.values():
        assert len({policy(seq) for seq in seqs}) == len(seqs)
        for one in seqs:
            for other in seqs:
                a, b = one.request, other.request
                if a.priority == b.priority and policy(one) < policy(other):
                    assert a.arrival_time <= b.arrival_time + 1e-9


def test_a_low_class_is_overtaken_only_for_as_long_as_the_rate_says():
    """One slot, and every second a request of a better class arrives: more than can be served."""
    engine = make_engine(max_num_seqs=1)
    engine.add(request("low", [1, 2], max_tokens=2, arrival=0.0, priority=2))
    bound = 2 * SECONDS_PER_PRIORITY_CLASS
    for second in range(int(bound) + 40):
        engine.add(request(f"high{second}", [3, 4], max_tokens=2, arrival=float(second)))
        engine.step()
    engine.run()
    overtaken_by = served(engine).index("low")
    assert 0 < overtaken_by <= bound + 1


def test_a_large_prompt_is_not_starved_by_small_ones():
    engine = make_engine(num_blocks=17, block_size=4, max_num_seqs=4, max_num_batched_tokens=16)
    for i in range(3):
        engine.add(request(f"early{i}", [1 + i] * 8, max_tokens=9, arrival=float(i)))
    engine.step()
    engine.add(request("large", [9] * 48, max_tokens=4, arrival=5.0))
    for i in range(30):
        engine.add(request(f"late{i}", [1 + i % 8] * 4, max_tokens=6, arrival=6.0 + i))
        engine.step()
    engine.run()
    order = served(engine)
    assert order.index("large") == 3
    assert len(order) == 34
