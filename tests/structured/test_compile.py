"""What is refused, and that nothing a grammar does to llguidance reaches this process or the next request."""

import json
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from jaxengine import LLM, SamplingParams, StructuredOutputs
from jaxengine.structured import GrammarCompiler, GrammarError
from jaxengine.structured.compiled import Entry, GrammarCache
from jaxengine.structured.trials import Trials


@pytest.fixture(scope="module")
def compiler(tiny: LLM) -> GrammarCompiler:
    assert tiny.engine.compiler is not None
    return tiny.engine.compiler


def chain(length: int, end: str) -> str:
    rules = [f'r{i}: r{i + 1} | "a"' for i in range(length)]
    return "\n".join(["start: r0", *rules, f"r{length}: {end}"])


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth - 1):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED = [
    ("json", {"type": "foo"}, "Invalid type: foo"),
    ("json", {"type": "object", "properties": {"foo": "bar"}}, "must be an object or boolean"),
    ("json", {"$ref": "#"}, "no text matches"),
    ("json", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "no text"),
    ("json", {"$ref": "#/$defs/missing"}, "does not exist"),
    ("json", {"$ref": "https://example.com/schema"}, "not present"),
    ("json", {"type": "string", "pattern": "("}, "unclosed group"),
    ("json", {"type": "array", "minItems": 10**6}, "1000000 minItems; at most 10000"),
    ("json", {"type": "string", "maxLength": 10_001}, "10001 maxLength; at most 10000"),
    ("json", {"not": {"type": "string"}}, '"not"'),
    ("json", {"type": "array", "uniqueItems": True}, "uniqueItems"),
    ("json", {"type": "string", "minLength": 3, "maxLength": 2}, ""),
    ("json", {"enum": []}, "empty"),
    ("json", {"x-guidance": {"lenient": True}, "not": {}}, "x-guidance"),
    ("json", {"a": [{"x-guidance": {}}]}, "x-guidance"),
    ("json", nested(65), "65 levels"),
    ("json", {"properties": {f"p{i}": {} for i in range(1001)}}, "1001 properties; at most 1000"),
    ("json", {"enum": list(range(5001))}, "5001 enum values; at most 5000"),
    ("json", {"type": "string", "pattern": "a" * 4097}, "4097 bytes; at most 4096"),
    ("json", {"description": "x" * 262144}, "bytes; at most 262144"),
    ("json", "{", "not JSON"),
    ("json", "[]", "must be an object"),
    ("json", '{"minimum": NaN}', "not JSON"),
    ("json", "[" * 100_000, "not JSON"),
    ("json", {"title": "\ud800"}, "not JSON"),
    ("regex", "*a", "repetition operator"),
    ("regex", "(?<=a)b", "look-behind"),
    ("regex", r"(a)\1", "backreferences"),
    ("regex", "a{10001}", "beyond 10000"),
    ("regex", "a{1,99999999999999999999}", "beyond 10000"),
    ("regex", "a" * 4097, "4097 bytes"),
    ("regex", "\ud800", "surrogate"),
    ("json", {"type": "string", "pattern": r"^\((a{2000}[(]){501}"}, "1002000 repeats"),
    ("regex", "(([a-z]{1,1000}){1,1000}){1,1000}", "1000000000 repeats"),
    ("grammar", "start: start", "no text matches"),
    ("grammar", "root ::= root", "no text matches"),
    ("grammar", "root ::= missing", "no GBNF"),
    ("grammar", "start: " + "(" * 60_000 + '"a"' + ")" * 60_000, "nested"),
    ("grammar", "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000, "no GBNF"),
    ("choice", ["a"] * 5001, "5001 texts; at most 5000"),
]


@pytest.mark.parametrize(("form", "value", "message"), REFUSED, ids=[f"{f}-{i}" for i, (f, _, _) in enumerate(REFUSED)])
def test_refused(form: str, value: Any, message: str, compiler: GrammarCompiler):
    with pytest.raises(GrammarError) as raised:
        compiler.compile(StructuredOutputs(**{form: value}))
    assert message in raised.value.reason
    assert str(raised.value) == f"structured_outputs.{form}: {raised.value.reason}"
    assert len(raised.value.reason) < 400
    assert "backtrace" not in raised.value.reason


@pytest.mark.parametrize("outputs", [
    StructuredOutputs(json=nested(64)),
    StructuredOutputs(json={"properties": {f"p{i}": {} for i in range(1000)}}),
    StructuredOutputs(json={"enum": list(range(5000))}),
    StructuredOutputs(json={"type": "string", "pattern": "a" * 4096}),
    StructuredOutputs(json={"type": "array", "minItems": 10_000}),
    StructuredOutputs(json={"type": "string", "x-unknown": 1, "title": "t", "examples": [{"x-guidance": 1}]}),
    StructuredOutputs(json=json.dumps({"oneOf": [{"type": "string"}, {"type": "null"}]})),
    StructuredOutputs(regex="a{10000}"),
    StructuredOutputs(regex="([a-z]{1,1000} ){1,1000}"),
    StructuredOutputs(regex=r"(a{1000}\)|[({1000}]b{1000}){1000}c{1000}"),
    StructuredOutputs(regex=r"\u{20000}|\x{10FFFF}"),
    StructuredOutputs(regex="a/b\\/c\n"),
    StructuredOutputs(choice=[f"{i * 7919 % 100003}" for i in range(5000)]),
    StructuredOutputs(grammar='start: start "a" | "b"'),
    StructuredOutputs(grammar='root ::= "a" root | "b"'),
    StructuredOutputs(json_object=True, disable_any_whitespace=True),
    StructuredOutputs(json_object=True, whitespace_pattern="[ ]"),
], ids=lambda outputs: outputs.form)
def test_at_the_limit(outputs: StructuredOutputs, compiler: GrammarCompiler):
    assert compiler.compile(outputs).matcher().num_tokens == 0


@pytest.mark.parametrize("schema", [
    {"enum": [1, 2**53 + 1]}, {"const": -(2**53) - 1}, {"properties": {"a": {"const": {"x": [2**60]}}}},
])
def test_integers_that_float64_does_not_hold_are_refused(schema: dict, compiler: GrammarCompiler):
    with pytest.raises(GrammarError, match="it cannot be kept exactly"):
        compiler.compile(StructuredOutputs(json=schema))


HANGS = [
    StructuredOutputs(json={"type": "integer", "multipleOf": 999_983}),
    StructuredOutputs(grammar="start: T\nT: " + " & ".join(f"/(.*a.{{{i}}}b.*)/" for i in range(30))),
]
CRASHES = [
    StructuredOutputs(grammar=chain(5000, 'start "b"')),
    StructuredOutputs(json={"$ref": "#/$defs/d0", "$defs": {"d999": {}, **{
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(999)
    }}}),
]


@pytest.mark.parametrize("outputs", [*HANGS, *CRASHES], ids=["hang", "hang", "crash", "crash"])
def test_what_llguidance_does_not_survive_is_refused(
    outputs: StructuredOutputs, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
):
    """These end or hold up the process that compiles them; here that is a child, and the child's time is over."""
    vocabulary, _ = compiler._ready()
    trials = Trials(vocabulary, {"verbose_errors": False}, cpu_s=0.3)
    monkeypatch.setattr(compiler, "_tools", (vocabulary, trials))
    with pytest.raises(GrammarError, match="too complex"):
        compiler.compile(outputs)
    assert trials._idle == []
    trials.close()


def test_others_compile_while_one_hangs(compiler: GrammarCompiler):
    hanging = compiler.submit(StructuredOutputs(json={"type": "integer", "multipleOf": 999_979}))
    sound = [compiler.submit(StructuredOutputs(choice=[f"beside {i}"])) for i in range(20)]
    for future in sound:
        future.result()
    assert not hanging.done()
    with pytest.raises(GrammarError, match="too complex for the 2 s"):
        hanging.result()


def test_a_child_that_does_not_answer_is_killed_by_the_clock(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
):
    """As where no CPU clock can be set."""
    monkeypatch.setattr("jaxengine.structured.trials.WALL_S", 0.3)
    trials = Trials(compiler._ready()[0], {"verbose_errors": False}, cpu_s=1000)
    assert "too complex" in str(trials.run(json.dumps({"grammars": [{"json_schema": HANGS[0].json}]})).error)
    trials.close()


def test_what_was_found_is_remembered(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch):
    good, bad = StructuredOutputs(choice=["remembered"]), StructuredOutputs(regex="remembered(")
    first = compiler.compile(good)
    with pytest.raises(GrammarError) as once:
        compiler.compile(bad)
    monkeypatch.setattr(Trials, "run", lambda *_: pytest.fail("tried twice"))
    assert compiler.compile(StructuredOutputs(choice=["remembered"])) is first
    with pytest.raises(GrammarError) as twice:
        compiler.compile(bad)
    assert str(once.value) == str(twice.value)
    first.wear.failed = True      # a lexer that ran full must not fail the next request
    assert compiler.compile(good) is not first


def test_white_space_options_are_part_of_the_key(compiler: GrammarCompiler):
    plain = compiler.compile(StructuredOutputs(json_object=True))
    assert compiler.compile(StructuredOutputs(json_object=True, disable_any_whitespace=True)) is not plain
    assert compiler.compile(StructuredOutputs(json={"type": "object"})) is plain


def test_the_cache_is_bounded_by_bytes(compiler: GrammarCompiler):
    cache = GrammarCache(max_bytes=4 << 20)
    compiled = compiler.compile(StructuredOutputs(choice=["x"]))
    for i in range(100):
        cache.put(b"%d" % i, Entry(None, "text", compiled))
        if i % 10 == 0:
            cache.put(b"%d" % i, Entry(None, "text", compiled))
        assert sum(entry.num_bytes for entry in cache._entries.values()) == cache.num_bytes <= 4 << 20
    assert 2 <= len(cache) <= 8
    assert cache.get(b"0") is None
    assert cache.get(b"99") is not None
    for i in range(100_000):
        cache.put(b"refused %d" % i, Entry("an error", ""))
    assert cache.num_bytes <= 4 << 20


def test_a_stream_of_unique_grammars_stays_within_the_cache(compiler: GrammarCompiler, tmp_path: Any):
    for i in range(150):
        compiler.compile(StructuredOutputs(json={"const": i}))
    assert compiler.cache.num_bytes <= compiler.cache.max_bytes == 64 << 20


@pytest.mark.parametrize(("fields", "message"), [
    ({}, "none is set"), ({"regex": "a", "choice": ["b"]}, "regex, choice are set"), ({"regex": ""}, "non-empty"),
    ({"json": [1]}, "schema"), ({"json": True}, "schema"), ({"choice": []}, "at least one"),
    ({"choice": [1]}, "1 must"), ({"choice": "abc"}, "list"), ({"grammar": 3}, "string"),
    ({"json_object": 1}, "true or false"),
    ({"json_object": False}, "none is set"), ({"regex": "a", "whitespace_pattern": " "}, "json_object, not regex"),
    ({"json_object": True, "disable_any_whitespace": True, "whitespace_pattern": " "}, "exclude"),
])
def test_exactly_one_form(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match="structured_outputs") as raised:
        StructuredOutputs(**fields)
    assert message in str(raised.value)


def test_sampling_params_take_nothing_else():
    with pytest.raises(ValueError, match="must be a StructuredOutputs"):
        SamplingParams(structured_outputs={"json_object": True})      # type: ignore[arg-type]


def test_without_llguidance_the_error_names_the_extra(tiny: LLM, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"pip install 'jaxengine\[structured\]'"):
        GrammarCompiler(tiny.tokenizer, [], 272).compile(StructuredOutputs(json_object=True))


def test_children_end_with_the_compiler(tiny: LLM):
    compiler = GrammarCompiler(tiny.tokenizer, tiny.tokenizer.eos_token_ids, 272)
    compiler.compile(StructuredOutputs(choice=["a"]))
    (child,) = compiler._ready()[1]._idle
    process: subprocess.Popen[str] = child._process
    assert process.poll() is None
    del compiler, child
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is not None
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
