"""Random arrivals, lengths, n, priorities, aborts, failures and pool sizes, against a model of the pool."""

from fake_device import BAD, FakeEngine, expected_output, make_engine, request
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jaxengine.types import FinishReason

MAX_MODEL_LEN = 40
POISON = 7

# Few distinct beginnings, so that prefixes are often shared.
prompts = st.builds(
    lambda stem, tail: [1, 2, 3, 4, 5, 6][:stem] * 3 + tail,
    st.sampled_from([0, 2, 4, 4, 6]),
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
)


@st.composite
def workloads(draw):
    """(engine settings, [(step of arrival, request fields, step of abort or None)])."""
    chunked = draw(st.booleans())
    max_num_seqs = draw(st.integers(1, 6))
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    engine = {
        "num_blocks": 2 + draw(st.integers(16, 100)) // block_size,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": draw(st.integers(max_num_seqs if chunked else 20, 30)),
        "max_model_len": MAX_MODEL_LEN,
        "enable_prefix_caching": draw(st.sampled_from([True, True, False])),
        "enable_chunked_prefill": chunked,
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "num_shards": draw(st.sampled_from([1, 1, 2, 3])),
    }
    arrivals = []
    for _ in range(draw(st.integers(2, 10))):
        fields = {
            "prompt": draw(prompts),
            "max_tokens": draw(st.sampled_from([0, 1, 2, 5, 12, None])),
            "n": draw(st.integers(1, min(3, max_num_seqs)) if draw(st.booleans()) else st.just(1)),
            "priority": 0 if engine["policy"] == "fcfs" else draw(st.integers(-2, 2)),
            "cache_salt": draw(st.sampled_from([None, None, None, "a"])),
        }
        begin = draw(st.integers(0, 15))
        end = draw(st.none() | st.none() | st.none() | st.integers(begin, begin + 20))
        arrivals.append((begin, fields, end))
    return engine, sorted(arrivals, key=lambda a: a[0])


def drive(engine: FakeEngine, arrivals) -> set[int]:
    """Runs a workload to its end; returns the ids of the aborted sequences."""
    aborted: set[int] = set()
    for step in range(2_000):
        for i, (begin, fields, _) in enumerate(arrivals):
            if begin == step:
                try:
                    engine.add(request(f"r{i}", arrival=float(step), ignore_eos=False, **fields))
                except ValueError:
                    event("refused")
        for i, (_, _, end) in enumerate(arrivals):
            if end == step:
                aborted |= {s.seq_id for s in engine.scheduler.abort(f"r{i}")}
        busy = engine.step()
        if not busy:
            assert not engine.scheduler.has_unfinished, "nothing to compute, nothing to read, but not done"
            if step > 40:
                return aborted
    raise AssertionError("a request did not end")


def check_at_rest(engine: FakeEngine) -> None:
    scheduler = engine.scheduler
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.has_unfinished) == (0, 0, False)
    assert [(pool.num_used, pool.usage) for pool in scheduler.pools] == [(0, 0.0)] * len(scheduler.pools)
    assert scheduler.waste() == 0
    scheduler.check()
    for seq in engine.seqs.values():
        assert seq.is_finished
        assert seq.slot == -1
        assert seq.block_table == []
    assert all(len(free) == scheduler.config.max_num_seqs for free in scheduler._roster._free_slots)
    assert not scheduler._roster._unforked


@settings(max_examples=400)
@given(workloads())
def test_every_request_yields_what_it_yields_alone(workload):
    settings_, arrivals = workload
    engine = make_engine(**settings_)
    aborted = drive(engine, arrivals)
    check_at_rest(engine)
    event(f"preemptions: {min(engine.scheduler.num_preemptions, 3)}")
    event(f"copies: {min(sum(len(s.copies) for p in engine.plans for s in p.shards), 3)}")
    event(f"hits: {any(pool.num_hit_tokens for pool in engine.scheduler.pools)}")
    event(f"evictions: {any(pool.num_evictions for pool in engine.scheduler.pools)}")
    for seq in engine.seqs.values():
        expected = expected_output(seq)
        if seq.seq_id in aborted:
            assert seq.finish_reason is FinishReason.ABORT
            assert seq.output_token_ids == expected[: len(seq.output_token_ids)]
        else:
            assert seq.output_token_ids == expected
            assert seq.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)


@settings(max_examples=200)
@given(workloads(), st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_failed_row_takes_nobody_with_it_for_long(workload, poisoned):
    """Poisoned contexts fail, never leak into a sound one's output, and leave nothing in the prefix cache."""
    settings_, arrivals = workload
    arrivals = [
        (begin, fields | {"prompt": [POISON, *fields["prompt"]] if bad else fields["prompt"]}, None)
        for (begin, fields, _), bad in zip(arrivals, poisoned, strict=False)
    ]
    engine = make_engine(**settings_, poison=POISON)
    drive(engine, arrivals)
    check_at_rest(engine)
    for seq in engine.seqs.values():
        if POISON in seq.request.prompt_token_ids and seq.request.params.max_tokens != 0:
            assert seq.finish_reason is FinishReason.ERROR
        elif POISON not in expected_output(seq):
            assert seq.output_token_ids == expected_output(seq)
    if all(fields["max_tokens"] != 0 for _, fields, _ in arrivals):
        cached = [(i, block) for i, pool in enumerate(engine.scheduler.pools) for block in pool._cached]
        assert not [at for at in cached if BAD in engine.pool[at]]
