"""Batching changes nothing but speed: every way of running a request gives what running it alone gives."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine import LLM, CompletionOutput, RequestOutput, SamplingParams
from jaxengine.engine.collect import NOT_FINITE
from jaxengine.engine.engine import Engine
from jaxengine.engine.runner import Runner
from jaxengine.scheduler import BlockManager, Scheduler

TIE = 1e-4      # logits closer than this may swap between bucket sizes


def prompts(count: int, seed: int = 0, longest: int = 150) -> list[list[int]]:
    r = random.Random(seed)
    return [[r.randrange(1000, 40000) for _ in range(r.randint(3, longest))] for _ in range(count)]


def greedy(max_tokens: int = 24) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, logprobs=2)


def assert_same(a: RequestOutput, b: RequestOutput) -> None:
    """Equal ids up to a near tie, equal log-probabilities within 1e-4 on the way."""
    x, y = a.outputs[0], b.outputs[0]
    assert len(x.token_ids) == len(y.token_ids)
    assert x.logprobs is not None
    assert y.logprobs is not None
    for i, (p, q) in enumerate(zip(x.token_ids, y.token_ids, strict=True)):
        best, second = sorted((e.logprob for e in x.logprobs[i].values()), reverse=True)[:2]
        if p != q:
            assert best - second <= TIE
            return
        assert x.logprobs[i][p].logprob == pytest.approx(y.logprobs[i][p].logprob, abs=TIE)


@pytest.fixture(scope="module")
def alone(smol: LLM) -> list[RequestOutput]:
    return [smol.generate(p, greedy(), use_tqdm=False)[0] for p in prompts(12)]


def test_batched_equals_alone(smol: LLM, alone: list[RequestOutput]) -> None:
    """Twelve requests over eight slots, prompts cut into chunks of a 64-token step."""
    for a, b in zip(smol.generate(prompts(12), greedy(), use_tqdm=False), alone, strict=True):
        assert_same(a, b)


def over_small_pool(smol: LLM, num_blocks: int) -> Engine:
    """A second engine over the same weights, pool and executables that may use only `num_blocks` blocks."""
    first = smol.engine
    engine = Engine(first.runner, first.config, first.max_model_len, first.tokenizer)
    blocks = BlockManager(num_blocks, first.config.cache.block_size, enable_prefix_caching=True)
    engine.scheduler = engine._collector.scheduler = Scheduler(first.config.scheduler, [blocks], first.max_model_len)
    return engine


@pytest.mark.slow
@given(num_blocks=st.integers(14, 60), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=6, deadline=None)
def test_any_schedule_gives_the_same_outputs(
    smol: LLM, alone: list[RequestOutput], num_blocks: int, seed: int
) -> None:
    """Random arrivals, aborts and pool sizes (so preemptions): what survives equals what it is alone."""
    engine, r = over_small_pool(smol, num_blocks), random.Random(seed)
    todo = list(range(12))
    running: dict[str, int] = {}
    finished: dict[int, RequestOutput] = {}
    while todo or engine.has_unfinished:
        if todo and r.random() < 0.5:
            index = todo.pop(0)
            running[engine.add_request(prompts(12)[index], greedy(), priority=index % 3)] = index
        if running and r.random() < 0.02:
            victim = r.choice(sorted(running))
            del running[victim]
            engine.abort(victim)
        for output in engine.step():
            if output.finished:
                finished[running.pop(output.request_id)] = output
        engine.blocks.check(engine.scheduler.running)
    assert not running
    for index, output in finished.items():
        assert_same(output, alone[index])
    assert engine.blocks.usage == 0


def test_preemption_recomputes_the_same(smol: LLM, alone: list[RequestOutput]) -> None:
    engine = over_small_pool(smol, 26)
    ids = [engine.add_request(p, greedy()) for p in prompts(12)]
    finished = {}
    while engine.has_unfinished:
        finished |= {o.request_id: o for o in engine.step() if o.finished}
    assert engine.scheduler.num_preemptions > 0
    for request_id, expected in zip(ids, alone, strict=True):
        assert_same(finished[request_id], expected)


def test_prefix_hits_change_nothing(smol: LLM) -> None:
    shared = prompts(1, seed=5, longest=150)[0] * 2
    tails = prompts(3, seed=6, longest=20)
    cold = [smol.generate(shared + t, greedy(), use_tqdm=False)[0] for t in tails]
    warm = smol.generate([shared + t for t in tails], greedy(), use_tqdm=False)
    assert all(w.num_cached_tokens >= len(shared) - 16 for w in warm)
    for a, b in zip(warm, cold, strict=True):
        assert_same(a, b)


def test_whole_prompt_cached(smol: LLM) -> None:
    prompt = prompts(1, seed=9)[0][:1] * 64      # exactly four blocks
    first = smol.generate(prompt, greedy(), use_tqdm=False)[0]
    second = smol.generate(prompt, greedy(), use_tqdm=False)[0]
    assert second.num_cached_tokens == 48      # one token at least is computed
    assert_same(first, second)


def test_n_sequences_share_the_prompt(smol: LLM) -> None:
    """n > 1 forks after the prefill; each continuation equals one drawn alone by copy on write's correctness."""
    prompt = prompts(1, seed=3)[0][:37]      # a partial last block, so the children must copy it
    params = SamplingParams(n=4, seed=11, temperature=1.0, max_tokens=20, ignore_eos=True)
    together = smol.generate(prompt, params, use_tqdm=False)[0]
    again = smol.generate([prompt, *prompts(3, seed=4)], [params, greedy(), greedy(), greedy()], use_tqdm=False)[0]
    texts = [tuple(c.token_ids) for c in together.outputs]
    assert len(set(texts)) == 4
    assert texts == [tuple(c.token_ids) for c in again.outputs]
    assert [c.index for c in together.outputs] == [0, 1, 2, 3]
    one = smol.generate(prompt, params.replace(n=1), use_tqdm=False)[0]
    assert tuple(one.outputs[0].token_ids) == texts[0]


def test_seeded_request_ignores_its_neighbours(smol: LLM) -> None:
    params = SamplingParams(seed=2**40 + 7, temperature=0.8, top_p=0.9, top_k=50, max_tokens=16, ignore_eos=True)
    prompt = prompts(1, seed=8)[0]
    alone = smol.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
    crowd = smol.generate([*prompts(6, seed=2), prompt], [greedy()] * 6 + [params], use_tqdm=False)[-1]
    assert crowd.outputs[0].token_ids == alone
    other = smol.generate(prompt, params.replace(seed=7), use_tqdm=False)[0].outputs[0].token_ids
    assert other != alone


def test_abort_at_any_moment(smol: LLM) -> None:
    engine, r = smol.engine, random.Random(1)
    ids = [engine.add_request(p, greedy(30)) for p in prompts(10, seed=12)]
    survivor, finished = ids[0], {}
    for _ in range(200):
        if len(ids) > 1 and r.random() < 0.3:
            victim = ids.pop(r.randrange(1, len(ids)))
            output = engine.abort(victim)
            assert output is None or output.outputs[0].finish_reason in ("abort", "length")
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
        if not engine.has_unfinished:
            break
    assert finished[survivor].outputs[0].finish_reason == "length"
    assert engine.abort("never heard of") is None


def test_prompt_logprobs_match_generation(smol: LLM) -> None:
    """Scoring prompt + output gives the log-probabilities that generation reported."""
    prompt = prompts(1, seed=20, longest=90)[0]
    output = smol.generate(prompt, greedy(12), use_tqdm=False)[0].outputs[0]
    assert output.logprobs is not None
    score = SamplingParams(max_tokens=0, prompt_logprobs=3)
    scored = smol.generate(prompt + output.token_ids, score, use_tqdm=False)[0]
    assert scored.prompt_logprobs is not None
    assert scored.prompt_logprobs[0] is None
    assert len(scored.prompt_logprobs) == len(prompt) + 12
    assert scored.outputs[0].token_ids == []
    for token_id, entry, generated in zip(
        output.token_ids, scored.prompt_logprobs[len(prompt):], output.logprobs, strict=True
    ):
        assert entry is not None
        assert entry[token_id].logprob == pytest.approx(generated[token_id].logprob, abs=1e-3)
        assert entry[token_id].rank == 1
        assert len(entry) == 3
    total, is_greedy = smol.loglikelihood(
        [({"prompt_token_ids": prompt}, {"prompt_token_ids": output.token_ids})], use_tqdm=False
    )[0]
    assert is_greedy
    generated_total = sum(e[t].logprob for e, t in zip(output.logprobs, output.token_ids, strict=True))
    assert total == pytest.approx(generated_total, abs=5e-3)


def test_loglikelihood_of_texts(smol: LLM) -> None:
    context = "The capital of France is"
    results = smol.loglikelihood([(context, " Paris"), (context, " cheese"), "The sky is blue."], use_tqdm=False)
    assert results[0][0] > results[1][0] + 3
    assert all(math.isfinite(total) and total < 0 for total, _ in results)


def test_logprobs_are_a_distribution(smol: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=20)
    output = smol.generate("Hello", params, use_tqdm=False)[0].outputs[0]
    assert output.logprobs is not None
    for token_id, entry in zip(output.token_ids, output.logprobs, strict=True):
        assert next(iter(entry)) == token_id
        assert [e.rank for e in sorted(entry.values(), key=lambda e: -e.logprob)] == list(range(1, 21))
        assert sum(math.exp(e.logprob) for e in entry.values()) <= 1 + 1e-5


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop_token_ids": [49152]}, "stop_token_ids"),
        ({"logit_bias": {49152: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [10**9]}, "allowed_token_ids"),
    ],
)
def test_ids_outside_the_vocabulary(smol: LLM, params: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        smol.generate("Hello", SamplingParams(**params), use_tqdm=False)


@pytest.mark.parametrize("ids", [[], [-1], [49152], [2**70], [True], [1.5]])
def test_bad_prompt_ids(smol: LLM, ids: list) -> None:
    with pytest.raises(ValueError, match="prompt_token_ids"):
        smol.engine.add_request(ids)


def test_prompt_that_never_fits(smol: LLM) -> None:
    with pytest.raises(ValueError, match=r"1030.*1024|1024.*1030"):
        smol.generate([[5], [5] * 1030], greedy(), use_tqdm=False)
    assert not smol.engine.has_unfinished      # the first one was taken back


def test_stop_strings_and_tokens(smol: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12)

    def run(**changes: object) -> CompletionOutput:
        return smol.generate("1, 2, 3, 4,", params.replace(**changes), use_tqdm=False)[0].outputs[0]

    full = run()
    assert " 7" in full.text
    cut = run(stop=" 7")
    assert cut.text == full.text.split(" 7")[0]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", " 7")
    assert run(stop=" 7", include_stop_str_in_output=True).text == cut.text + " 7"
    third = full.token_ids[2]
    by_id = run(stop_token_ids=[third])
    assert by_id.token_ids == full.token_ids[: full.token_ids.index(third) + 1]
    assert by_id.stop_reason == third


def test_min_tokens_and_masks(smol: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    params = SamplingParams(temperature=0.0, max_tokens=12)
    held = smol.chat(messages, params.replace(min_tokens=12), use_tqdm=False)[0].outputs[0]
    assert len(held.token_ids) == 12
    both = smol.chat(messages, params.replace(min_tokens=12, ignore_eos=True), use_tqdm=False)[0].outputs[0]
    assert both.token_ids == held.token_ids      # EOS is held back even where it would not end the answer
    banned = smol.chat(messages, params.replace(bad_words=["Paris"]), use_tqdm=False)[0].outputs[0]
    assert "Paris" not in banned.text
    allowed = SamplingParams(temperature=1.0, seed=1, max_tokens=10, allowed_token_ids=[500, 600, 700])
    assert set(smol.generate("Hello", allowed, use_tqdm=False)[0].outputs[0].token_ids) <= {500, 600, 700}
    biased = params.replace(max_tokens=3, logit_bias={1234: 100})
    assert smol.generate("Hello", biased, use_tqdm=False)[0].outputs[0].token_ids == [1234] * 3


def test_penalties_reach_the_device(smol: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    plain = smol.generate("a a a a a", params, use_tqdm=False)[0]
    params = params.replace(frequency_penalty=2.0, presence_penalty=2.0)
    varied = smol.generate("a a a a a", params, use_tqdm=False)[0]
    def repeats(output: RequestOutput) -> int:
        ids = output.outputs[0].token_ids
        return len(ids) - len(set(ids))
    assert repeats(varied) < repeats(plain)


def test_a_row_that_is_not_finite_fails_alone(smol: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, forward = smol.engine, Runner.forward
    poisoned = iter([True])

    def poison(self: Runner, *args: object):
        rows, hidden = forward(self, *args)  # type: ignore[arg-type]
        if next(poisoned, False):
            rows = rows.at[0].set(math.nan, out_sharding=rows.sharding)
        return rows, hidden

    smol.generate([1, 2, 3], greedy(2), use_tqdm=False)      # nothing in flight
    monkeypatch.setattr(Runner, "forward", poison)
    short = [p[:20] for p in prompts(2, seed=30)]
    bad, good = smol.generate(short, greedy(4), use_tqdm=False)
    assert bad.outputs[0].finish_reason == "error"
    assert bad.error == NOT_FINITE
    assert good.outputs[0].finish_reason == "length"
    retry = smol.generate(short[0], greedy(4), use_tqdm=False)[0]      # nothing of it was cached
    assert retry.num_cached_tokens == 0
    assert retry.outputs[0].finish_reason == "length"
    assert engine.ledger.compiled_after_warmup == 0


def test_the_demo_brings_its_makers_advice(smol: LLM) -> None:
    params = smol.get_default_sampling_params()
    assert (params.temperature, params.top_p, params.top_k) == (0.2, 0.9, 0)


def test_streaming(smol: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12)
    whole = smol.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0]
    seen = [o.outputs[0] for o in smol.stream("Once upon a time", params)]
    assert [len(c.token_ids) for c in seen] == list(range(1, 13))
    assert seen[-1].text == whole.text
    deltas = [o.outputs[0] for o in smol.stream("Once upon a time", params, output_kind="delta")]
    assert "".join(c.text for c in deltas) == whole.text
    assert [t for c in deltas for t in c.token_ids] == whole.token_ids


def test_leaving_a_stream_early_frees_it(smol: LLM) -> None:
    for _ in smol.stream(["One", "Two"], SamplingParams(max_tokens=200, ignore_eos=True)):
        break
    assert not smol.engine.requests


def test_waste_is_small(smol: LLM) -> None:
    """Allocated but unused slots at 512 tokens and more: under 4% at block size 16."""
    for p in prompts(4, seed=40):
        smol.engine.add_request((p * 200)[:520], greedy(100))
    worst = 0.0
    while smol.engine.has_unfinished:
        smol.engine.step()
        if all(s.num_tokens >= 512 for s in smol.engine.scheduler.running) and smol.engine.scheduler.num_running == 4:
            worst = max(worst, smol.engine.scheduler.waste())
    assert 0 < worst < 0.04
