"""response_format and structured_outputs over HTTP, and everything that may be wrong with them."""

import json
import re
import threading
import time
from typing import Any

import jsonschema
import numpy as np
import pytest
from wire import Wire

from jaxengine.server.model_service import ModelService
from jaxengine.structured.compiler import CompiledGrammar, GrammarCompiler
from jaxengine.structured.matcher import GrammarMatcher

pytestmark = pytest.mark.usefixtures("unharmed")
C, H = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["city", "warm"],
    "properties": {"city": {"type": "string", "maxLength": 5}, "warm": {"type": "boolean"}},
}
TIGHT = {"disable_any_whitespace": True}


def schema_format(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema} | fields}


def chat(wire: Wire, **fields: Any) -> Any:
    return wire.post(H, {"messages": USER, "max_tokens": 180, "temperature": 1, "seed": 5} | fields)


def texts(answer: Any) -> list[str]:
    assert answer.status == 200, answer.body
    assert {choice["finish_reason"] for choice in answer.json["choices"]} == {"stop"}
    return [choice["message"]["content"] for choice in answer.json["choices"]]


@pytest.mark.parametrize("strict", [None, True, False])
def test_61_a_schema_is_kept(wire: Wire, strict: bool | None):
    for text in texts(chat(wire, response_format=schema_format(SCHEMA, strict=strict), n=3)):
        jsonschema.validate(json.loads(text), SCHEMA)


def test_61_any_object(wire: Wire):
    answer = chat(wire, response_format={"type": "json_object"}, seed=1, logit_bias={"125": 8})
    choice = answer.json["choices"][0]
    assert choice["message"]["content"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_61_what_is_cut_says_length(wire: Wire):
    answer = chat(wire, structured_outputs={"regex": "[a-z]{60}"}, max_tokens=20)
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert re.fullmatch("[a-z]{20,60}", answer.json["choices"][0]["message"]["content"])


def test_c21_nothing_follows_the_object(wire: Wire):
    fields = {"structured_outputs": {"json": SCHEMA} | TIGHT, "ignore_eos": True, "min_tokens": 150}
    (text,) = texts(chat(wire, **fields))
    jsonschema.validate(json.loads(text), SCHEMA)
    assert text.endswith("}")
    cut = chat(wire, **fields | {"max_tokens": 9, "min_tokens": 0}).json["choices"][0]
    assert (cut["finish_reason"], cut["message"]["content"]) == ("length", text[:9])


@pytest.mark.parametrize(("form", "pattern"), [
    ({"json": json.dumps(SCHEMA)} | TIGHT, r'\{"city":".*","warm":(true|false)\}'),
    ({"regex": r"\d{4}-[ab]"}, r"\d{4}-[ab]"),
    ({"choice": ["red", "green"], "json": None}, "red|green"),
    ({"grammar": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
    ({"grammar": 'start: "x" ("y" | "z")', "json_object": False}, "x[yz]"),
], ids=["json", "regex", "choice", "gbnf", "lark"])
def test_structured_outputs_in_chat_and_completions(wire: Wire, form: dict[str, Any], pattern: str):
    (text,) = texts(chat(wire, structured_outputs=form))
    assert re.fullmatch(pattern, text, re.DOTALL)
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 120, "seed": 1, "structured_outputs": form}
    answer = wire.post(C, body)
    assert len(answer.json["choices"]) == 4
    for choice in answer.json["choices"]:
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["text"], re.DOTALL)
    events = wire.post(C, body | {"stream": True}).events
    streamed = dict.fromkeys(range(4), "")
    for event in events[:-1]:
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert [streamed[i] for i in range(4)] == [choice["text"] for choice in answer.json["choices"]]


def test_free_text_is_free(wire: Wire, greedy_text: str):
    for fields in ({"response_format": {"type": "text"}}, {"response_format": None, "structured_outputs": None}):
        answer = wire.post(C, {"prompt": "Hello", "temperature": 0, "max_tokens": 8} | fields)
        assert answer.json["choices"][0]["text"] == greedy_text


WRONG_FORMATS: list[tuple[Any, str]] = [
    ("json_object", "type=None"), ([], "type=None"), ({}, "type=None"), ({"type": "xml"}, "'xml'"),
    ({"type": "structural_tag"}, "structural_tag"), ({"type": "json_schema"}, "json_schema=None"),
    ({"type": "json_schema", "json_schema": "x"}, "name and schema"),
    ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "name=None"),
    ({"type": "json_schema", "json_schema": {"name": "a b", "schema": SCHEMA}}, "name='a b'"),
    ({"type": "json_schema", "json_schema": {"name": "a"}}, "schema=None"),
    (schema_format("x"), "schema='x'"), (schema_format(True), "schema=True"),
    (schema_format(SCHEMA, strict=1), "strict"),
    (schema_format({"type": "foo"}), "Invalid type: foo"),
    (schema_format({"type": "string", "pattern": "("}), "unclosed group"),
    (schema_format({"$ref": "#/$defs/x"}), "does not exist"), (schema_format({"$ref": "#"}), "no text matches"),
    (schema_format({"type": "object", "properties": {"foo": "bar"}}), "must be an object or boolean"),
    (schema_format({"type": "array", "minItems": 10**6}), "at most 10000"),
    (schema_format({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (schema_format({"enum": list(range(5001))}), "5001 enum"),
]


@pytest.mark.parametrize(("value", "message"), WRONG_FORMATS, ids=[f"62-{i}" for i in range(len(WRONG_FORMATS))])
@pytest.mark.parametrize("stream", [False, True])
def test_62_wrong_response_formats(wire: Wire, value: Any, message: str, stream: bool):
    answer = chat(wire, response_format=value, stream=stream)
    assert answer.status == 400
    assert answer.error["param"] == "response_format"
    assert message in answer.error["message"]


WRONG_OUTPUTS: list[tuple[Any, str]] = [
    ("x", "must be an object"), ({}, "none is set"), ({"regex": "a", "choice": ["b"]}, "exactly one"),
    ({"regex": 5}, "regex=5"), ({"regex": "\n("}, "structured_outputs.regex: "), ({"choice": []}, "at least one"),
    ({"choice": ["a", 1]}, "choice"), ({"json": "{"}, "not JSON"), ({"json": 5}, "json=5"),
    ({"structural_tag": "{}"}, "structural_tag is not supported"), ({"regex": "a", "backend": "x"}, "backend"),
    ({"regex": "a", "disable_any_whitespace": 1}, "disable_any_whitespace=1"),
    ({"grammar": "root ::= root"}, "no text matches"), ({"grammar": "start: start"}, "no text matches"),
    ({"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000}, "no GBNF"),
    ({"grammar": "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)) + "\nr5000 ::= r0\nroot ::= r0"}, ""),
    ({"regex": "(([a-z]{1,1000}){1,1000}){1,1000}"}, "1000000000 repeats"),
    ({"regex": "*a"}, "repetition operator"), ({"regex": "(?<=a)b"}, "look"),
]


@pytest.mark.parametrize(("value", "message"), WRONG_OUTPUTS, ids=[f"63-{i}" for i in range(len(WRONG_OUTPUTS))])
def test_63_wrong_structured_outputs(wire: Wire, value: Any, message: str):
    for path, body in ((H, {"messages": USER}), (C, {"prompt": "x"})):
        answer = wire.post(path, body | {"structured_outputs": value, "max_tokens": 4})
        assert answer.status == 400
        assert answer.error["param"] == "structured_outputs"
        assert message in answer.error["message"]


def test_the_two_fields_exclude_each_other(wire: Wire):
    answer = chat(wire, response_format={"type": "json_object"}, structured_outputs={"regex": "a"})
    assert (answer.status, answer.error["param"]) == (400, "structured_outputs")


@pytest.mark.parametrize("field", ["guided_json", "guided_regex", "guided_choice", "guided_grammar"])
def test_older_fields_point_to_the_new_ones(wire: Wire, field: str):
    answer = chat(wire, **{field: {"a": 1}})
    assert (answer.status, answer.error["param"]) == (400, field)
    assert "structured_outputs" in answer.error["message"]


def test_c9_others_are_served_while_a_grammar_compiles(wire: Wire):
    """The slow one hangs llguidance itself for minutes; it is refused when its time is over."""
    slow: list[Any] = []
    form = {"json": {"type": "integer", "multipleOf": 999_961}}
    thread = threading.Thread(target=lambda: slow.append(chat(wire, structured_outputs=form)))
    thread.start()
    served = 0
    while thread.is_alive():
        assert wire.get("/health").status == 200
        assert texts(chat(wire, structured_outputs={"choice": [f"beside {served}"]})) == [f"beside {served}"]
        served += 1
        time.sleep(0.01)
    thread.join()
    assert served >= 3
    assert (slow[0].status, slow[0].error["param"]) == (400, "structured_outputs")
    assert "too complex" in slow[0].error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_fails_on_the_way_is_the_clients_fault(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, stream: bool
):
    class Failing(GrammarMatcher):
        def settle(self, mask: np.ndarray, may_end: bool) -> None:
            super().settle(mask, may_end)
            if self.num_tokens == 3:
                self._fail("the grammar is too complex at this point of the output")
                mask[:] = 0

    monkeypatch.setattr(CompiledGrammar, "matcher", lambda self: Failing(
        self.handle.deep_copy(), self.vocabulary, self.wear))
    answer = chat(wire, structured_outputs={"choice": [f"doomed {stream}"]}, stream=stream)
    error = answer.events[-1]["error"] if stream else answer.error
    assert error["message"] == "structured_outputs: the grammar is too complex at this point of the output"
    assert error["type"] == "invalid_request_error"
    assert answer.status == (200 if stream else 400)


def test_waiting_too_long_for_a_grammar(serve: Any, service: ModelService, monkeypatch: pytest.MonkeyPatch):
    gate, compile_one = threading.Event(), GrammarCompiler._compile

    def slow(self: GrammarCompiler, outputs: Any) -> Any:
        gate.wait(30)
        return compile_one(self, outputs)

    monkeypatch.setattr(GrammarCompiler, "_compile", slow)
    with serve(max_queue_wait=0.05) as wire:
        answer = chat(wire, structured_outputs={"choice": ["late"]})
        gate.set()
        assert (answer.status, answer.error["code"]) == (429, "queue_full")
        assert "waited 0.05 s for its grammar" in answer.error["message"]
        assert int(answer.headers["retry-after"]) >= 1
