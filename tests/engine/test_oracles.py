"""Both demo models through the whole engine against ids and logits computed by other implementations."""

import json
from pathlib import Path

import pytest

from jaxengine import LLM, RequestOutput, SamplingParams


def cases(golden: Path, name: str) -> list[dict]:
    return json.loads((golden / f"reference_{name}.json").read_text())["cases"]


def check(output: RequestOutput, case: dict, tolerance: float) -> None:
    """First-step logits within `tolerance`; greedy ids equal up to where the reference's own margin is in doubt."""
    completion = output.outputs[0]
    assert completion.logprobs is not None
    first = completion.logprobs[0]
    for token_id, logit in case["first_step_top5_logits"]:
        assert first[token_id].logprob == pytest.approx(logit - case["first_step_logsumexp"], abs=tolerance)
    by_rank = sorted(first, key=lambda t: first[t].rank)
    assert by_rank[:5] == [t for t, _ in case["first_step_top5_logits"]]
    margins = case["greedy_top1_minus_top2"]
    sure = next((i for i, m in enumerate(margins) if m <= 2 * tolerance), len(margins))
    assert completion.token_ids[:sure] == case["greedy_ids"][:sure]
    assert sure >= 20


def run(llm: LLM, all_cases: list[dict]) -> list[RequestOutput]:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=5)
    return llm.generate([c["prompt_ids"] for c in all_cases], params, use_tqdm=False)


@pytest.mark.floor
def test_smollm2(smol: LLM, golden: Path) -> None:
    all_cases = cases(golden, "smollm2")
    for output, case in zip(run(smol, all_cases), all_cases, strict=True):
        check(output, case, 1e-3)


def test_smollm2_texts(smol: LLM, golden: Path) -> None:
    """The same from messages: template, tokenizer and detokenizer included."""
    for case in cases(golden, "smollm2"):
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, skip_special_tokens=False)
        output = smol.chat(case["messages"], params, use_tqdm=False)[0]
        assert output.prompt_token_ids == case["prompt_ids"]
        assert output.outputs[0].token_ids == case["greedy_ids"]
        assert output.outputs[0].text == case["greedy_text"]


def test_smollm2_chat_ends_itself(smol: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    output = smol.chat(messages, SamplingParams(temperature=0.0, max_tokens=40), use_tqdm=False)[0]
    assert output.outputs[0].text == "The capital of France is Paris."
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.slow
def test_gemma3(gemma: LLM, golden: Path) -> None:
    """The thousand-token prompt crosses the sliding window and several chunks."""
    all_cases = cases(golden, "gemma3_270m")
    for output, case, tolerance in zip(run(gemma, all_cases), all_cases, (1e-3, 3e-3), strict=True):
        check(output, case, tolerance)
