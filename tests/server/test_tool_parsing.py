"""Tool calls and reasoning read from text: in one piece, and in pieces however they are cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.server.chat_stage import ChatStage, PlainStage
from jaxengine.server.reasoning import ReasoningStage
from jaxengine.server.tool_calls.formats import FORMATS, PLAIN, CallFormat
from jaxengine.server.tool_calls.parser import ToolCallStage

Calls = list[tuple[str, str]]
NAMES = {"get", "set"}
HERMES, LLAMA, MISTRAL = (FORMATS[name] for name in ("hermes", "llama3_json", "mistral"))


def read(stage: ChatStage, pieces: list[str]) -> tuple[str, str, Calls, str]:
    """Content, reasoning, calls and the finish reason, put together as a client does it."""
    content = reasoning = ""
    calls: list[dict[str, str]] = []
    for i, piece in enumerate(pieces):
        delta = stage.push(piece, finished=i == len(pieces) - 1)
        content, reasoning = content + delta.content, reasoning + delta.reasoning_content
        for entry in delta.tool_calls:
            if entry["index"] == len(calls):
                assert entry["id"]
                assert entry["type"] == "function"
                calls.append({"id": entry["id"], "name": entry["function"]["name"], "arguments": ""})
            else:
                assert entry["index"] == len(calls) - 1
                assert set(entry) == {"index", "function"}
            calls[-1]["arguments"] += entry["function"].get("arguments", "")
    assert len({call["id"] for call in calls}) == len(calls)
    return content, reasoning, [(c["name"], c["arguments"]) for c in calls], stage.finish_reason("stop")


ONE = '{"name": "get", "arguments": {"a": [1, {"b": "}]\\""}], "ü": "\\u00e9 é"}}'
ONE_ARGUMENTS = '{"a": [1, {"b": "}]\\""}], "ü": "\\u00e9 é"}'
P = '{"name": "get", "parameters": {"a": 1}}'

AUTO: list[tuple[CallFormat, str, str, Calls]] = [
    (HERMES, f"<tool_call>\n{ONE}\n</tool_call>", "", [("get", ONE_ARGUMENTS)]),
    (HERMES, f"I look.\n<tool_call>{ONE}</tool_call>\n", "I look.", [("get", ONE_ARGUMENTS)]),
    (HERMES, f"<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{P}\n</tool_call>", "",
     [("get", ONE_ARGUMENTS), ("get", '{"a": 1}')]),
    (HERMES, "no call at all  \n", "no call at all  \n", []),
    (HERMES, "a < b, <tool, <tool_cal", "a < b, <tool, <tool_cal", []),
    (HERMES, "  {} [] x", "  {} [] x", []),
    (HERMES, f"<tool_call>{ONE}</tool_call> and more", "and more", [("get", ONE_ARGUMENTS)]),
    (HERMES, '<tool_call>{"arguments": {"x": 1}, "name": "unknown"}</tool_call>', "", [("unknown", '{"x": 1}')]),
    (HERMES, '<tool_call>{"name": "get"}</tool_call>', "", [("get", "{}")]),
    (HERMES, '<tool_call>{"name": "get", "arguments": null}</tool_call>', "", [("get", "{}")]),
    (HERMES, '<tool_call>{"name": "get", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("get", '{"a": 1}')]),
    (HERMES, '<tool_call>{"id": [1, {"name": 2}], "name": "set", "arguments": { }}</tool_call>', "", [("set", "{ }")]),
    (HERMES, '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    (HERMES, '<tool_call>{name: "get"}</tool_call>', '<tool_call>{name: "get"}</tool_call>', []),
    (HERMES, "<tool_call>nothing</tool_call>", "<tool_call>nothing</tool_call>", []),
    (HERMES, "<tool_call>\n", "<tool_call>\n", []),
    (HERMES, '<tool_call>{"name": "get", "arguments": {"a": "cut off', "", [("get", '{"a": "cut off')]),
    (HERMES, '<tool_call>{"na', '<tool_call>{"na', []),
    (LLAMA, P, "", [("get", '{"a": 1}')]),
    (LLAMA, f"\n {P}", "", [("get", '{"a": 1}')]),
    (LLAMA, f"<|python_tag|>{P}", "", [("get", '{"a": 1}')]),
    (LLAMA, P + '; {"type": "function", "name": "set", "parameters": {}}', "", [("get", '{"a": 1}'), ("set", "{}")]),
    (LLAMA, '{"name": "Bob", "parameters": {"x": 1}}', '{"name": "Bob", "parameters": {"x": 1}}', []),
    (LLAMA, '{"name": "get", "age": 3}', '{"name": "get", "age": 3}', []),
    (LLAMA, '{"answer": 42} is it', '{"answer": 42} is it', []),
    (LLAMA, f"Answer: {P}", f"Answer: {P}", []),
    (LLAMA, "{", "{", []),
    (MISTRAL, f"[TOOL_CALLS] [{ONE}]", "", [("get", ONE_ARGUMENTS)]),
    (MISTRAL, f"[TOOL_CALLS][{ONE}, {P}]", "", [("get", ONE_ARGUMENTS), ("get", '{"a": 1}')]),
    (MISTRAL, f"Well. [TOOL_CALLS]{ONE}", "Well.", [("get", ONE_ARGUMENTS)]),
    (MISTRAL, "[1, 2] and [TOOL", "[1, 2] and [TOOL", []),
]
FORCED: list[tuple[CallFormat, str, Calls]] = [
    (PLAIN, f"[{ONE}]", [("get", ONE_ARGUMENTS)]),
    (PLAIN, f"[{ONE}, {ONE}]", [("get", ONE_ARGUMENTS)] * 2),
    (HERMES, f"<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{ONE}\n</tool_call>", [("get", ONE_ARGUMENTS)] * 2),
    (LLAMA, f"{P}; {P}", [("get", '{"a": 1}')] * 2),
    (MISTRAL, f"[{ONE}, {ONE}]", [("get", ONE_ARGUMENTS)] * 2),
    (PLAIN, '[{"name": "get", "arguments": {"a": tr', [("get", '{"a": tr')]),
]


def cuts(text: str) -> list[list[str]]:
    """In one piece, by characters, in two at every place."""
    return [[text], [*text], *([text[:i], text[i:]] for i in range(len(text)))]


@pytest.mark.parametrize(("form", "text", "content", "calls"), AUTO)
def test_calls_among_text(form: CallFormat, text: str, content: str, calls: Calls):
    for pieces in cuts(text):
        got = read(ToolCallStage(form, NAMES, forced=False), pieces)
        assert got == (content, "", calls, "tool_calls" if calls else "stop"), pieces


@pytest.mark.parametrize(("form", "text", "calls"), FORCED)
def test_calls_that_were_forced(form: CallFormat, text: str, calls: Calls):
    for pieces in cuts(text):
        assert read(ToolCallStage(form, NAMES, forced=True), pieces) == ("", "", calls, "tool_calls")
    assert read(ToolCallStage(form, NAMES, forced=True, is_named=True), [text])[3] == "stop"


def test_other_ends_keep_their_name():
    stage = ToolCallStage(PLAIN, NAMES, forced=True)
    stage.push(f"[{ONE}", finished=True)
    assert stage.finish_reason("length") == "length"


PARTS = st.sampled_from(["<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[", "]", "<|python_tag|>", "{", "}",
                         '"', "\\", ":", ",", ";", " ", "\n", "x", '"name"', '"get"', '"arguments"', "{}", ONE, P,
                         "<think>", "</think>", "</th", "é"])


@given(parts=st.lists(PARTS, max_size=12), form=st.sampled_from([HERMES, LLAMA, MISTRAL]), begun=st.booleans(),
       data=st.data())
def test_however_it_is_cut_the_message_is_the_same(
    parts: list[str], form: CallFormat, begun: bool, data: st.DataObject
):
    text = "".join(parts)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]

    def stage() -> ChatStage:
        return ReasoningStage(ToolCallStage(form, NAMES, forced=False), begun)

    assert read(stage(), pieces) == read(stage(), [text]) == read(stage(), [*text] or [""])


@given(value=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8,
), indent=st.sampled_from([None, 2]), ascii_only=st.booleans())
def test_any_arguments_come_through(value: Any, indent: int | None, ascii_only: bool):
    arguments = {"value": value, "}": "{"}
    text = json.dumps({"name": "get", "arguments": arguments}, indent=indent, ensure_ascii=ascii_only)
    for pieces in ([text], [*text]):
        content, _, calls, _ = read(ToolCallStage(HERMES, NAMES, forced=False), [
            "<tool_call>", *pieces, "</tool_call>"])
        assert content == ""
        assert [(name, json.loads(given)) for name, given in calls] == [("get", arguments)]


def test_long_hostile_texts_take_linear_time():
    """Each of these would take hours if anything were read again for each character."""
    begun = '<tool_call>{"name": "get", "arguments": {"a": "'
    for text in ("{" * 300_000, "<tool_call>" * 30_000, begun + "\\" * 300_000, '{"a": ' * 50_000, "<" * 300_000):
        read(ToolCallStage(HERMES, NAMES, forced=False), [text[i:i + 1000] for i in range(0, len(text), 1000)])
        for form in FORMATS.values():
            read(ToolCallStage(form, NAMES, forced=False), [text])


REASONING = [
    (False, "<think>hm</think>yes", "hm", "yes"),
    (False, "\n<think>\nhm\n\nhm\n</think>\n\nyes\n", "hm\n\nhm", "yes\n"),
    (False, "yes", "", "yes"),
    (False, "  yes <think>no</think>", "", "  yes <think>no</think>"),
    (False, "<thin", "", "<thin"),
    (False, "<think>cut off", "cut off", ""),
    (False, "<think>cut off </thi", "cut off </thi", ""),
    (False, "<think></think>yes", "", "yes"),
    (True, "hm</think>yes", "hm", "yes"),
    (True, "\n\nhm\n</think>\n\nyes</think>", "hm", "yes</think>"),
    (True, "hm", "hm", ""),
    (False, "", "", ""),
]


@pytest.mark.parametrize(("begun", "text", "reasoning", "content"), REASONING)
def test_reasoning_apart_from_the_answer(begun: bool, text: str, reasoning: str, content: str):
    for pieces in cuts(text):
        assert read(ReasoningStage(PlainStage(), begun), pieces) == (content, reasoning, [], "stop"), pieces


def test_calls_after_reasoning():
    text = f"<think>I should look: <tool_call></think>\n\n<tool_call>\n{ONE}\n</tool_call>"
    for pieces in cuts(text):
        assert read(ReasoningStage(ToolCallStage(HERMES, NAMES, forced=False), False), pieces) == (
            "", "I should look: <tool_call>", [("get", ONE_ARGUMENTS)], "tool_calls")
