"""Packed steps against what plans and sequences say, over preemptions, forks and prefix hits."""

import random

import numpy as np

from jaxengine.config import SchedulerConfig
from jaxengine.engine.batch import BatchBuilder, SampleRow
from jaxengine.engine.step import StepBuckets
from jaxengine.scheduler import BlockManager, Scheduler
from jaxengine.types import FinishReason, Request, SamplingParams, Sequence, StepPlan

SEQS, TOKENS, BLOCK, BLOCKS_PER_SEQ = 6, 24, 4, 16


def check(plan: StepPlan, view: dict[str, np.ndarray], samples: list[SampleRow], seqs: dict[int, Sequence]) -> None:
    at, expected = 0, []
    children: dict[int, list[tuple[int, int]]] = {}
    (shard,) = plan.shards
    for parent, child, slot in shard.forks:
        children.setdefault(parent, []).append((child, slot))
    for i, row in enumerate(plan.rows):
        seq, positions = seqs[row.seq_id], range(row.start, row.start + row.num_tokens)
        part = slice(at, at + row.num_tokens)
        known = seq.token_ids
        assert view["token_ids"][part].tolist() == [known[p] if p < len(known) else -1 - row.slot for p in positions]
        assert view["positions"][part].tolist() == list(positions)
        slots = [seq.block_table[p // BLOCK] * BLOCK + p % BLOCK for p in positions]
        assert view["slot_mapping"][part].tolist() == slots
        table = view["block_tables"][i].tolist()
        assert table == seq.block_table + [0] * (BLOCKS_PER_SEQ - len(seq.block_table))
        assert view["kv_lens"][i] == positions.stop
        assert view["cu_q_lens"][i : i + 2].tolist() == [at, part.stop]
        if row.sample:
            mine = [(row.seq_id, row.slot), *children.get(row.seq_id, [])]
            expected += [(seq_id, slot, positions.stop, part.stop - 1) for seq_id, slot in mine]
        at = part.stop
    assert view["cu_q_lens"][len(plan.rows) :].tolist() == [at] * (len(view["cu_q_lens"]) - len(plan.rows))
    assert not view["kv_lens"][len(plan.rows) :].any()
    assert not view["slot_mapping"][at:].any()
    assert view["num_decodes"][0] == shard.num_decodes
    assert [(s.seq.seq_id, s.slot, s.position, s.token_index) for s in samples] == expected
    assert view["rows"][: len(samples)].tolist() == [e[3] for e in expected]


def test_packed_steps() -> None:
    seen = set().union(*(run(seed) for seed in range(20)))
    assert seen == {"copies", "forks", "preempted"}, "the schedules were too easy"


def run(seed: int) -> set[str]:
    """Checks every step of a random schedule; returns the difficulties that it held."""
    r = random.Random(seed)
    config = SchedulerConfig(max_num_seqs=SEQS, max_num_batched_tokens=TOKENS)
    scheduler = Scheduler(config, [BlockManager(r.choice([18, 40, 80]), BLOCK)], BLOCK * BLOCKS_PER_SEQ)
    seqs: dict[int, Sequence] = {}
    builder = BatchBuilder(SEQS, BLOCKS_PER_SEQ, BLOCK, seqs.__getitem__)
    buckets = StepBuckets((SEQS,), (TOKENS + SEQS,), (SEQS,), (SEQS,), SEQS, BLOCKS_PER_SEQ, BLOCK * BLOCKS_PER_SEQ)
    before: list[SampleRow] = []
    seen: set[str] = set()
    for step in range(150):
        if step < 110 and r.random() < 0.4:
            prompt = [r.randrange(3) for _ in range(r.randint(1, 30))]      # three ids: prefixes meet often
            params = SamplingParams(n=r.choice([1, 1, 2, 3]), max_tokens=r.randint(1, 25))
            seqs.update({s.seq_id: s for s in scheduler.add(Request(f"r{step}", prompt, params))})
        plan = scheduler.schedule()
        samples: list[SampleRow] = []
        if plan is not None:
            kind = "decode" if plan.is_decode else "mixed"
            shape = buckets.shape(kind, SEQS if plan.is_decode else TOKENS + SEQS)
            packed, (samples,) = builder.build(plan, shape)
            check(plan, shape.views(packed), samples, seqs)
            seen |= {name for name in ("copies", "forks") if getattr(plan.shards[0], name)}
            seen |= {"preempted"} if plan.preempted else set()
        for sample in before:      # read one step late
            if scheduler.commit(sample.seq, r.randrange(3)) and len(sample.seq.token_ids) >= sample.seq.max_num_tokens:
                scheduler.finish(sample.seq, FinishReason.LENGTH)
        before = samples
    return seen
