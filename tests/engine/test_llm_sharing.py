"""One LLM read by several at once: nested and parallel iterations, threads, and readers that leave."""

import gc
import threading

import pytest

from jaxengine import LLM, SamplingParams
from jaxengine.structured.matcher import GrammarMatcher, Wear

PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def text(llm: LLM, prompt: str) -> str:
    return llm.generate(prompt, PARAMS, use_tqdm=False)[0].outputs[0].text


def test_iterations_that_overlap(smol: LLM) -> None:
    a, b = text(smol, "The sky is"), text(smol, "Two and two")
    pairs = list(zip(smol.stream("The sky is", PARAMS), smol.stream("Two and two", PARAMS), strict=True))
    assert [out.outputs[0].text for out in pairs[-1]] == [a, b]
    inner = [text(smol, "Two and two") for _ in zip(smol.stream("The sky is", PARAMS), range(2), strict=False)]
    assert inner == [b, b]
    gc.collect()
    assert not smol.engine.requests


def test_threads_share_an_llm(smol: LLM) -> None:
    prompts = ["The sky is", "Two and two", "Once upon"]
    expected = {prompt: text(smol, prompt) for prompt in prompts}
    got: dict[str, str] = {}
    threads = [threading.Thread(target=lambda p=p: got.update({p: text(smol, p)})) for p in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert got == expected
    assert smol.engine.ledger.on_wait is None


def test_a_stream_that_nobody_reads_leaves_nothing(smol: LLM) -> None:
    unread = smol.stream("The sky is", PARAMS)
    assert smol.engine.requests
    del unread
    gc.collect()
    assert not smol.engine.requests
    begun = smol.stream("The sky is", PARAMS)
    next(begun)
    smol.engine.abort(next(iter(smol.engine.requests)))
    assert list(begun) == []


def test_one_bad_entry_leaves_nothing_queued(smol: LLM) -> None:
    with pytest.raises(ValueError, match="not a SamplingParams"):
        smol.generate(["a", "b"], [PARAMS, {"n": 1}], use_tqdm=False)      # type: ignore[list-item]
    assert not smol.engine.requests


@pytest.mark.parametrize("field", [
    {"ignore_eos": "no"}, {"bad_words": "abc"}, {"stop": 5}, {"stop_token_ids": 5}, {"logit_bias": [1]},
])
def test_wrong_types_are_named(field: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        SamplingParams(**field)


def test_a_grammar_that_takes_too_long_ends() -> None:
    matcher = GrammarMatcher(None, None, Wear())      # type: ignore[arg-type]
    matcher.spend(0.9)
    assert matcher.error is None
    matcher.spend(0.2)
    assert matcher.error is not None
    assert "too long" in matcher.error
