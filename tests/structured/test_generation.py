"""Whatever a model would rather write, its text is in the grammar; and nobody else's text changes."""

import asyncio
import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxengine import LLM, AsyncEngine, CompletionOutput, RequestOutput, SamplingParams, StructuredOutputs
from jaxengine.engine.engine import Engine
from jaxengine.scheduler import BlockManager, Scheduler
from jaxengine.structured import CompiledGrammar, GrammarCompiler, GrammarMatcher, fill_masks
from jaxengine.tokenizer import Tokenizer

PERSON = {
    "type": "object", "additionalProperties": False, "required": ["name", "age", "tags"],
    "properties": {
        "name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 3},
    },
}


def run(llm: LLM, prompts: Any = "Say:", /, **fields: Any) -> list[RequestOutput]:
    form = {k: fields.pop(k) for k in ("json", "regex", "choice", "grammar", "json_object") if k in fields}
    params = {"temperature": 1.0, "max_tokens": 200, "seed": 0} | fields
    outputs = StructuredOutputs(**form) if form else None
    return llm.generate(prompts, SamplingParams(structured_outputs=outputs, **params), use_tqdm=False)


def one(llm: LLM, prompt: Any = "Say:", /, **fields: Any) -> CompletionOutput:
    (output,) = run(llm, prompt, **fields)
    assert output.error is None
    return output.outputs[0]


# JSON schemas whose texts are short, so that most end by themselves.
scalars = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "format": "date"}]),
    st.tuples(st.integers(-50, 50), st.integers(0, 2000)).map(
        lambda t: {"type": "integer", "minimum": t[0], "maximum": t[0] + t[1]}),
    st.tuples(st.integers(0, 3), st.integers(0, 4)).map(
        lambda t: {"type": "string", "minLength": t[0], "maxLength": sum(t)}),
    st.sampled_from(["^[a-c]{1,3}$", "^x", r"^\d{2}-[^\d]$"]).map(
        lambda p: {"type": "string", "pattern": p, "maxLength": 6}),
    st.lists(
        st.one_of(st.integers(-(2**53), 2**53), st.text(max_size=4), st.none(), st.booleans()), min_size=1, max_size=4
    ).map(lambda values: {"enum": values}),
    st.text(max_size=5).map(lambda value: {"const": value}),
)
KEYS = st.sampled_from(["a", "key", 'q"uote', "ü", "with space", "b\\s"])


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(KEYS, inner, max_size=3).flatmap(
        lambda properties: st.lists(st.sampled_from(sorted(properties)), unique=True).map(
            lambda required: {"type": "object", "properties": properties, "required": required,
                              "additionalProperties": False}
        ) if properties else st.just({"type": "object", "additionalProperties": False}))


trees = st.recursive(scalars, lambda inner: st.one_of(
    objects(inner),
    st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
        lambda t: {"type": "array", "items": t[0], "minItems": t[1], "maxItems": t[1] + t[2]}),
    st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
), max_leaves=5)
schemas = st.one_of(trees, trees.map(lambda schema: {"$defs": {"x": schema}, "$ref": "#/$defs/x"}))


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(batch=st.lists(schemas, min_size=8, max_size=8), seed=st.integers(0, 2**31),
       temperature=st.sampled_from([0.0, 1.0, 2.0]))
def test_any_schema_is_kept(tiny: LLM, batch: list[dict[str, Any]], seed: int, temperature: float):
    params = [SamplingParams(seed=seed, temperature=temperature, max_tokens=160,
                             structured_outputs=StructuredOutputs(json=schema)) for schema in batch]
    for schema, output in zip(batch, tiny.generate(["x"] * len(batch), params, use_tqdm=False), strict=True):
        (out,) = output.outputs
        assert output.error is None
        if out.finish_reason == "length":
            assert len(out.token_ids) == 160
        else:
            assert out.finish_reason == "stop"
            jsonschema.validate(json.loads(out.text), schema)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_most_texts_come_to_an_end(tiny: LLM, temperature: float):
    results = [run(tiny, json=PERSON, temperature=temperature, n=8, seed=seed)[0].outputs for seed in range(2)]
    ended = [out for outs in results for out in outs if out.finish_reason == "stop"]
    assert len(ended) >= 12
    for out in ended:
        jsonschema.validate(json.loads(out.text), PERSON)


@pytest.mark.parametrize("regex", [
    r"[a-c]{3}-\d{2,4}", "^abc$", "(foo|bar){2,5}", r"é+😀{1,3}[^\x00-\x7f]{1,3}", r"a/b\/c\n[/]", '"\\\\"', ".{0,30}",
])
def test_a_regex_is_matched_whole(tiny: LLM, regex: str):
    (output,) = run(tiny, regex=regex, n=8, max_tokens=300)
    for out in output.outputs:
        assert out.finish_reason == "stop"
        assert re.fullmatch(regex, out.text), (regex, out.text)


def test_a_choice_is_one_of_the_texts(tiny: LLM):
    texts = ["yes", "yes, but", "no", 'a "quote"\n', "日本", "\\", "/"]
    (output,) = run(tiny, choice=texts, n=8, temperature=2.0)
    assert {out.text for out in output.outputs} <= set(texts)
    assert len({out.text for out in output.outputs}) > 1
    assert {out.finish_reason for out in output.outputs} == {"stop"}


@pytest.mark.parametrize("grammar", ['start: "(" start ")" | "x"', 'root ::= "(" root ")" | "x"'], ids=["lark", "gbnf"])
def test_a_grammar_is_kept(tiny: LLM, grammar: str):
    (output,) = run(tiny, grammar=grammar, n=8)
    for out in output.outputs:
        depth = out.text.count("(")
        expected = "(" * depth + "x" + ")" * depth
        assert out.text == (expected if out.finish_reason == "stop" else expected[: len(out.text)])


def test_any_object_and_no_white_space(tiny: LLM):
    out = one(tiny, json_object=True, max_tokens=1500)
    assert out.finish_reason == "length" or isinstance(json.loads(out.text), dict)
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=300, n=4, structured_outputs=StructuredOutputs(
        json=PERSON, disable_any_whitespace=True))
    for out in tiny.generate("x", params, use_tqdm=False)[0].outputs:
        if out.finish_reason == "stop" and "\\" not in out.text:
            assert out.text == json.dumps(json.loads(out.text), separators=(",", ":"), ensure_ascii=False)


def test_the_text_ends_with_the_object_even_where_eos_is_ignored(tiny: LLM):
    for fields in ({"ignore_eos": True}, {"min_tokens": 100}, {}):
        out = one(tiny, choice=["red", "blue"], max_tokens=150, **fields)
        assert out.text in ("red", "blue")
        assert (out.finish_reason, out.stop_reason) == ("stop", None)
        assert len(out.token_ids) == len(out.text)      # bytes; no token for the end


def test_where_the_text_may_go_on_ignored_eos_and_min_tokens_hold(tiny: LLM):
    out = one(tiny, regex="[a-z]+", ignore_eos=True, max_tokens=50)
    assert (out.finish_reason, len(out.token_ids)) == ("length", 50)
    assert re.fullmatch("[a-z]{50,}", out.text)
    out = one(tiny, regex="a*", min_tokens=10, max_tokens=1000, temperature=2.0)
    assert (out.finish_reason, out.text[:10]) == ("stop", "a" * 10)
    out = one(tiny, regex="[a-z]{0,5}", min_tokens=10, max_tokens=20)
    assert (out.finish_reason, len(out.text)) == ("stop", 5)


def test_a_text_that_is_cut_says_length(tiny: LLM):
    out = one(tiny, regex="[a-z]{100}", max_tokens=30)
    assert (out.finish_reason, len(out.token_ids)) == ("length", 30)
    out = one(tiny, choice=["abcde"], max_tokens=5)
    assert (out.finish_reason, out.text) == ("stop", "abcde")      # complete and at the limit
    out = one(tiny, choice=["abcde"], max_tokens=4)
    assert (out.finish_reason, out.text) == ("length", "abcd")


def test_a_stop_string_still_stops(tiny: LLM):
    out = one(tiny, choice=["one, two, three"], stop=[" two"])
    assert (out.text, out.finish_reason, out.stop_reason) == ("one,", "stop", " two")


def test_logprobs_are_of_the_raw_logits(tiny: LLM):
    out = one(tiny, choice=["zzz"], temperature=0.0, logprobs=2)
    assert out.logprobs is not None
    assert [entry[token].decoded_token for entry, token in zip(out.logprobs, out.token_ids, strict=True)] == ["z"] * 3
    assert all(entry[token].rank > 1 for entry, token in zip(out.logprobs, out.token_ids, strict=True))


def test_batched_neighbours_are_not_touched(tiny: LLM):
    """Requests with and without grammars in one batch give what each gives alone."""
    prompts = [f"prompt {i} " * (i + 1) for i in range(8)]
    forms: list[StructuredOutputs | None] = [
        None, StructuredOutputs(json=PERSON), None, StructuredOutputs(regex="[a-z ]{5,40}"), None,
        StructuredOutputs(json=PERSON), StructuredOutputs(choice=["alpha", "beta"]), None,
    ]
    params = [SamplingParams(temperature=0.0 if i % 3 else 1.0, seed=i, max_tokens=60, structured_outputs=form)
              for i, form in enumerate(forms)]
    together = tiny.generate(prompts, params, use_tqdm=False)
    for prompt, param, output in zip(prompts, params, together, strict=True):
        (alone,) = tiny.generate(prompt, param, use_tqdm=False)
        assert alone.outputs[0].text == output.outputs[0].text
        assert alone.outputs[0].finish_reason == output.outputs[0].finish_reason


def test_preempted_sequences_resume_in_their_grammar(tiny: LLM):
    first = tiny.engine
    engine = Engine(first.runner, first.config, first.max_model_len, first.tokenizer, first.eos_token_ids)
    blocks = BlockManager(24, first.config.cache.block_size, enable_prefix_caching=True)
    engine.scheduler = engine._collector.scheduler = Scheduler(first.config.scheduler, [blocks], first.max_model_len)
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=90,
                            structured_outputs=StructuredOutputs(regex="([a-z]{3}-)*"), ignore_eos=True)
    ids = [engine.add_request(tiny.tokenizer.encode(f"{i}: "), params) for i in range(6)]
    done: dict[str, RequestOutput] = {}
    while engine.has_unfinished:
        done |= {o.request_id: o for o in engine.step() if o.finished}
    assert engine.scheduler.num_preemptions > 0
    for i, request_id in enumerate(ids):
        (alone,) = tiny.generate(f"{i}: ", params, use_tqdm=False)
        assert done[request_id].outputs[0].text == alone.outputs[0].text
        assert re.fullmatch("([a-z]{3}-)*[a-z]{0,3}", alone.outputs[0].text)
    assert engine.blocks.usage == 0


def test_a_cached_prefix_changes_nothing(tiny: LLM):
    prompt = "The same long prompt, again and again. " * 3
    texts = [one(tiny, prompt, json=PERSON, seed=11) for _ in range(2)]
    assert texts[0].text == texts[1].text


class Failing(GrammarMatcher):
    """Fails at its third mask, as a grammar does that becomes too complex."""

    def settle(self, mask: np.ndarray, may_end: bool) -> None:
        super().settle(mask, may_end)
        if self.num_tokens == 3:
            self._fail("the grammar is too complex at this point of the output")
            mask[:] = 0


def test_a_failing_grammar_fails_its_own_request(tiny: LLM, monkeypatch: pytest.MonkeyPatch):
    matcher = CompiledGrammar.matcher
    monkeypatch.setattr(CompiledGrammar, "matcher", lambda self: (
        Failing(self.handle.deep_copy(), self.vocabulary, self.wear) if "doomed" in self.text else matcher(self)))
    params = [SamplingParams(temperature=0.0, max_tokens=30, structured_outputs=form) for form in (
        StructuredOutputs(choice=["doomed to fail"]), StructuredOutputs(choice=["bound to go well"]), None)]
    failed, sound, free = tiny.generate(["x", "x", "x"], params, use_tqdm=False)
    assert failed.error == "structured_outputs: the grammar is too complex at this point of the output"
    assert (failed.outputs[0].finish_reason, failed.outputs[0].text) == ("error", "doo")
    assert (sound.outputs[0].text, sound.error) == ("bound to go well", None)
    assert free.outputs[0].text == tiny.generate("x", params[2], use_tqdm=False)[0].outputs[0].text


def test_a_token_that_does_not_fit_fails_its_own_request(tiny: LLM, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jaxengine.engine.grammars.SequenceGrammars.masks", lambda self, samples: None)
    (output,) = run(tiny, choice=["~~~~~"], temperature=0.0)
    assert output.error == "structured_outputs: the grammar cannot take the token that followed"


def test_abort_and_a_refused_request_leave_nothing_behind(tiny: LLM):
    engine = tiny.engine
    params = SamplingParams(structured_outputs=StructuredOutputs(regex="[a-z]+"), n=3)
    request_id = engine.add_request([1, 2, 3], params)
    engine.step()
    engine.step()
    engine.abort(request_id)
    with pytest.raises(ValueError, match="structured_outputs"):
        engine.add_request([1], SamplingParams(structured_outputs=StructuredOutputs(regex="(")))
    assert not engine.requests


async def _collect(engine: AsyncEngine, params: SamplingParams) -> str:
    text = ""
    async for output in engine.generate([1, 2, 3], params):
        text += output.outputs[0].text
    return text


def test_through_the_async_engine(tiny: LLM):
    async def scenario() -> None:
        engine = AsyncEngine(tiny.engine)
        try:
            params = [SamplingParams(temperature=1.0, seed=i, max_tokens=100,
                                     structured_outputs=StructuredOutputs(choice=[f"text {i}"])) for i in range(12)]
            texts = await asyncio.gather(*(_collect(engine, p) for p in params))
            assert texts == [f"text {i}" for i in range(12)]
            with pytest.raises(ValueError, match=r"structured_outputs\.json: Invalid type"):
                await _collect(engine, SamplingParams(structured_outputs=StructuredOutputs(json={"type": "x"})))
        finally:
            engine.stop()

    asyncio.run(scenario())


TEXTS = ["the theta", "the éa", "日 a", "a", "t<s>", "</s>x", "  user a"]


@pytest.mark.parametrize("name", ["folder", "sentencepiece", "byte_level", "no_eos"])
def test_masks_allow_what_spells_the_text_and_nothing_else(name: str, tokenizers: dict[str, Tokenizer]):
    """Walks every choice to its end; each mask against the bytes of the whole vocabulary."""
    tokenizer = tokenizers[name]
    num_rows = tokenizer.vocab_size + 5
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_token_ids, num_rows)
    grammar = compiler.compile(StructuredOutputs(choice=TEXTS))
    for text in TEXTS:
        matcher, written = grammar.matcher(), b""
        while not matcher.ended:
            allowed = _allowed(matcher, num_rows)
            if text.encode() == written:
                assert allowed >= tokenizer.eos_token_ids
                break
            for token in allowed - tokenizer.eos_token_ids:
                assert token not in tokenizer.special_token_ids
                assert tokenizer.token_bytes(token)
                assert any(t.encode().startswith(written + tokenizer.token_bytes(token)) for t in TEXTS)
            fits = [t for t in allowed if text.encode().startswith(written + tokenizer.token_bytes(t))]
            token = max(fits, key=lambda t: len(tokenizer.token_bytes(t)))
            matcher.consume(token)
            written += tokenizer.token_bytes(token)
        assert written == text.encode()
        assert matcher.error is None


def _allowed(matcher: GrammarMatcher, num_rows: int, may_end: bool = True) -> set[int]:
    bits = np.unpackbits(fill_masks([(matcher, may_end)])[0].view(np.uint8), bitorder="little")
    assert not bits[num_rows:].any()
    return set(np.flatnonzero(bits).tolist())


def test_tokens_can_be_taken_back(tiny: LLM):
    assert tiny.engine.compiler is not None
    matcher = tiny.engine.compiler.compile(StructuredOutputs(choice=["abcd", "abxy"])).matcher()
    masks = []
    for token in tiny.tokenizer.encode("abcd"):
        masks.append(_allowed(matcher, 272))
        matcher.consume(token)
    assert matcher.ended
    for mask in reversed(masks):
        matcher.rollback(1)
        assert not matcher.ended
        assert _allowed(matcher, 272) == mask
    assert matcher.num_tokens == 0


@pytest.mark.slow
def test_the_demo_model_fills_in_a_schema(smollm2: str):
    with LLM(smollm2, max_num_seqs=2, max_num_batched_tokens=64, max_model_len=512, num_blocks=70,
             decode_buckets=(2,), token_buckets=(64,), progress=False) as llm:
        output = llm.chat([{"role": "user", "content": "Who was Ada Lovelace? Answer as JSON."}], SamplingParams(
            temperature=0.0, max_tokens=100, structured_outputs=StructuredOutputs(json=PERSON)), use_tqdm=False)
        jsonschema.validate(json.loads(output[0].outputs[0].text), PERSON)
        # A text that is forced is spelled as the model spells it, not letter by letter.
        text = "tokenization of international texts"
        params = SamplingParams(temperature=0.0, max_tokens=50, structured_outputs=StructuredOutputs(choice=[text]))
        (output,) = llm.generate("x", params, use_tqdm=False)
        assert output.outputs[0].token_ids == llm.tokenizer.encode(text, add_special_tokens=False)
