"""Tools over HTTP: forced calls of a random model, and what a model that knows tools writes by itself."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import OpenAI
from tiny_model import write_model
from wire import Wire, running_server

from jaxengine.config import EngineConfig
from jaxengine.engine.load import load_engine
from jaxengine.server.answer_shape import AnswerShape
from jaxengine.server.context import ServerContext
from jaxengine.server.model_service import ModelService
from jaxengine.server.settings import ServerSettings
from jaxengine.server.tool_calls.formats import FORMATS, HERMES, LLAMA3_JSON, MISTRAL, call_format
from jaxengine.structured_outputs import StructuredOutputs

H = "/v1/chat/completions"
USER: Any = [{"role": "user", "content": "Hello"}]
WEATHER = {"type": "object", "additionalProperties": False, "required": ["city", "unit"],
           "properties": {"city": {"type": "string", "maxLength": 4}, "unit": {"enum": ["C", "F"]}}}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


TOOLS: Any = [tool("get_weather", WEATHER), tool("stop")]
SCHEMAS = {"get_weather": WEATHER, "stop": {"type": "object", "maxProperties": 0}}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
TEMPLATE = (
    "{% for tool in tools or [] %}<tool_call>{{ tool.function.name }} takes arguments\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if thinking %}<think>\n{% endif %}{% endif %}"
    "{# </think> #}"
)
pytestmark = pytest.mark.usefixtures("blocks_return")


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelService]:
    """A tiny model whose template knows tools in Hermes' style, and reasoning."""
    folder: Path = write_model(tmp_path_factory.mktemp("talker") / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    options: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 64, "num_blocks": 400,
                               "decode_buckets": (8,), "token_buckets": (64,)}
    loaded = load_engine(str(folder), EngineConfig.from_options(**options), chat_template=TEMPLATE, progress=False)
    service = ModelService.start(loaded)
    yield service
    service.engine.close()


@pytest.fixture(scope="module")
def start(talker: ModelService) -> Callable[..., Any]:
    return lambda **settings: running_server(ServerContext(ServerSettings(port=0, **settings), ("t",), service=talker))


@pytest.fixture(scope="module")
def server(start: Callable[..., Any]) -> Iterator[Wire]:
    with start() as wire:
        yield wire


@pytest.fixture
def blocks_return(server: Wire, talker: ModelService) -> Iterator[None]:
    yield
    engine = talker.engine.engine
    assert server.post(H, {"messages": USER, "max_tokens": 2}).status == 200
    while engine.requests or talker.engine.num_unfinished:
        time.sleep(0.005)
    assert engine.blocks.num_used == 0


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the model write a text, as one that knows tools would; the server does not know why it does."""

    def script(text: str) -> None:
        def applied(self: AnswerShape, params: Any) -> Any:
            return params.replace(structured_outputs=StructuredOutputs(choice=[text]),
                                  skip_special_tokens=not self.marks)

        monkeypatch.setattr(AnswerShape, "applied", applied)

    return script


def chat(wire: Wire, **fields: Any) -> Any:
    return wire.post(H, {"messages": USER, "max_tokens": 400, "temperature": 1, "seed": 3} | fields)


def message(wire: Wire, **fields: Any) -> tuple[dict[str, Any], str]:
    """The one choice's message and finish reason, and the same from a stream."""
    answer = chat(wire, **fields)
    assert answer.status == 200, answer.body
    (choice,) = answer.json["choices"]
    whole = choice["message"]
    streamed = joined(chat(wire, stream=True, **fields).events)[0]
    assert streamed["finish_reason"] == choice["finish_reason"]
    for key in ("content", "reasoning_content"):
        assert streamed[key] == (whole.get(key) or "")
    plain = [(c["function"]["name"], c["function"]["arguments"]) for c in whole.get("tool_calls", ())]
    assert [(c["name"], c["arguments"]) for c in streamed["calls"]] == plain
    return whole, choice["finish_reason"]


def joined(events: list[Any]) -> dict[int, dict[str, Any]]:
    assert events[-1] == "[DONE]"
    choices: dict[int, dict[str, Any]] = {}
    for event in events[:-1]:
        (part,) = event["choices"]
        choice = choices.setdefault(part["index"], {"content": "", "reasoning_content": "", "calls": [], "logprobs": 0})
        assert "finish_reason" not in choice
        choice["content"] += part["delta"].get("content") or ""
        choice["reasoning_content"] += part["delta"].get("reasoning_content") or ""
        choice["logprobs"] += len((part["logprobs"] or {"content": ()})["content"])
        for call in part["delta"].get("tool_calls", ()):
            if call["index"] == len(choice["calls"]):
                choice["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            choice["calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
        if part["finish_reason"] is not None:
            choice["finish_reason"] = part["finish_reason"]
    return choices


def check_call(name: str, arguments: str) -> None:
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize("parser", ["auto", "hermes", "llama3_json", "mistral", "none"])
def test_58_forced_calls_always_parse(start: Callable[..., Any], parser: str):
    with start(tool_call_parser=parser) as wire:
        for choice, reason in (("required", "tool_calls"), (NAMED, "stop")):
            fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 2}
            whole, finish = message(wire, **fields)
            assert (whole["content"], finish) == (None, reason)
            (call,) = whole["tool_calls"]
            assert (call["type"], set(call)) == ("function", {"id", "type", "function"})
            check_call(call["function"]["name"], call["function"]["arguments"])
            assert choice == "required" or call["function"]["name"] == "get_weather"


def test_several_calls_may_be_forced_at_once(server: Wire):
    answer = chat(server, tools=[tool("stop")], tool_choice="required", n=8, max_tokens=900)
    calls = [choice["message"]["tool_calls"] for choice in answer.json["choices"]]
    assert {choice["finish_reason"] for choice in answer.json["choices"]} == {"tool_calls"}
    assert {call["function"]["name"] for made in calls for call in made} == {"stop"}
    assert all(len({call["id"] for call in made}) == len(made) <= 16 for made in calls)
    assert max(map(len, calls)) > 1


def test_c22_forced_calls_with_n_stream_and_logprobs(server: Wire):
    events = chat(server, tools=TOOLS, tool_choice=NAMED, n=3, stream=True, logprobs=True, top_logprobs=1,
                  stream_options={"include_usage": True}).events
    usage = events.pop(-2)["usage"]
    choices = joined(events)
    assert sorted(choices) == [0, 1, 2]
    assert len({call["id"] for choice in choices.values() for call in choice["calls"]}) == 3
    for choice in choices.values():
        assert choice["finish_reason"] == "stop"
        (call,) = choice["calls"]
        check_call(call["name"], call["arguments"])
    assert sum(choice["logprobs"] for choice in choices.values()) == usage["completion_tokens"]


def test_the_openai_package_streams_tools(server: Wire):
    with OpenAI(base_url=server.url + "/v1", api_key="x") as client:
        fields: Any = {"model": "t", "messages": USER, "tools": TOOLS, "seed": 1, "max_tokens": 400, "temperature": 1}
        with client.chat.completions.stream(**fields, tool_choice="required", parallel_tool_calls=False) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        whole = client.chat.completions.create(**fields, tool_choice="required", parallel_tool_calls=False)
        for done in (final, whole):
            assert done.choices[0].finish_reason == "tool_calls"
            (call,) = done.choices[0].message.tool_calls or ()
            assert call.type == "function"
            check_call(call.function.name, call.function.arguments)
        answered = [*USER, whole.choices[0].message.model_dump(exclude_none=True),
                    {"role": "tool", "tool_call_id": "x", "content": "22 C"}]
        assert client.chat.completions.create(**fields | {"messages": answered}, tool_choice="none").choices


def test_58_calls_that_the_model_makes_by_itself(server: Wire, says: Callable[[str], None]):
    says('I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom", "unit": "C"}}\n</tool_call>')
    whole, finish = message(server, tools=TOOLS)
    assert (whole["content"], finish) == ("I look.", "tool_calls")
    (call,) = whole["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Rom", "unit": "C"}'}
    whole, finish = message(server, tools=TOOLS, max_tokens=66)
    assert finish == "length"
    assert whole["tool_calls"][0]["function"]["arguments"] == '{"city": "'


def test_a_model_that_only_talks_stops(server: Wire, says: Callable[[str], None]):
    says("No tool is needed. <b>")
    whole, finish = message(server, tools=TOOLS, tool_choice="auto")
    assert (whole["content"], finish) == ("No tool is needed. <b>", "stop")
    assert "tool_calls" not in whole


def test_tools_are_shown_to_the_template_unless_the_choice_is_none(
    server: Wire, talker: ModelService, says: Callable[[str], None]
):
    says("ok")
    sizes = {choice: chat(server, tools=TOOLS, tool_choice=choice).json["usage"]["prompt_tokens"]
             for choice in ("auto", "none")}
    assert sizes["none"] == chat(server).json["usage"]["prompt_tokens"]
    lines = "".join(f"<tool_call>{name} takes arguments\n" for name in SCHEMAS)
    assert sizes["auto"] - sizes["none"] == len(talker.tokenizer.encode(lines))


def test_reasoning_is_told_apart(server: Wire, says: Callable[[str], None]):
    says("<think>\nhm\n</think>\n\nyes")
    whole, _ = message(server)
    assert (whole["reasoning_content"], whole["content"]) == ("hm", "yes")
    says("hm</think>yes")
    whole, _ = message(server, chat_template_kwargs={"thinking": True})
    assert (whole["reasoning_content"], whole["content"]) == ("hm", "yes")
    whole, _ = message(server)      # nobody began to reason
    assert whole["content"] == "hm</think>yes"
    says('<think>hm</think><tool_call>{"name": "stop", "arguments": {}}</tool_call>')
    whole, finish = message(server, tools=TOOLS)
    assert (whole["reasoning_content"], whole["content"], finish) == ("hm", None, "tool_calls")


def test_reasoning_can_be_left_in(start: Callable[..., Any], says: Callable[[str], None]):
    says("<think>hm</think>yes")
    with start(reasoning_parser="none") as wire:
        assert message(wire)[0]["content"] == "<think>hm</think>yes"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "absent"}}}, "'absent'"),
    *(("tool_choice", {"tool_choice": choice}, "needs tools") for choice in ("required", "auto")),
    ("tool_choice", {"tools": [], "tool_choice": NAMED}, "not among"),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "any"}, "'any'"),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function"}}, "must be"),
    ("tools", {"tools": "x"}, "tools"), ("tools", {"tools": ["x"]}, "tools[0]"),
    ("tools", {"tools": [{"type": "web_search"}]}, "tools[0]"),
    *(("tools", {"tools": [tool(name)]}, "64 letters") for name in ("", "a b", 'a"b', "a\nb", "x" * 10_000, "ü")),
    *(("tools", {"tools": [tool("a", parameters)]}, "object or null") for parameters in ("x", [1], 5)),
    ("tools", {"tools": [tool("a", {"type": "string"})]}, "must be 'object'"),
    ("tools", {"tools": [tool("a"), tool("a")]}, "twice"),
    ("tools", {"tools": [tool(f"t{i}") for i in range(129)]}, "129 entries; at most 128"),
    ("tools", {"tools": [tool("a", {"description": "x" * 140_000}), tool("b", {"description": "x" * 140_000})]},
     "bytes; at most 262144"),
    ("tools", {"tools": [tool("a", {"properties": {"x": {"type": "foo"}}})], "tool_choice": "required"}, "Invalid"),
    ("tools", {"tools": [tool("a", {"x-guidance": {}})]}, "x-guidance"),
    ("response_format", {"tools": TOOLS, "response_format": {"type": "json_object"}}, "tool_choice='none'"),
    ("parallel_tool_calls", {"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls=1"),
    ("functions", {"functions": []}, "use tools"),
]


@pytest.mark.parametrize(("param", "fields", "text"), WRONG, ids=[f"59-{i}" for i in range(len(WRONG))])
def test_59_what_is_refused(server: Wire, param: str, fields: dict[str, Any], text: str):
    answer = chat(server, **fields)
    assert (answer.status, answer.error["param"].partition("[")[0].partition(".")[0]) == (400, param)
    assert text in answer.error["message"]


def test_59_no_tools_and_no_choice_is_a_plain_chat(server: Wire):
    for fields in ({"tools": []}, {"tools": None, "tool_choice": None}, {"tools": TOOLS, "tool_choice": "none"}):
        answer = chat(server, max_tokens=3, **fields)
        assert answer.status == 200
        assert answer.json["choices"][0]["finish_reason"] == "length"


def test_58_auto_is_refused_where_the_way_to_call_is_not_known(wire: Wire, start: Callable[..., Any]):
    with start(tool_call_parser="none") as other:
        for refusing in (wire, other):
            answer = refusing.post(H, {"messages": USER, "tools": TOOLS})
            assert (answer.status, answer.error["param"]) == (400, "tool_choice")
            assert "--tool-call-parser" in answer.error["message"]


@pytest.mark.parametrize(("template", "form"), [
    ('{% if tools %}<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}{% endif %}', HERMES),
    ('{% if tools %}<|start_header_id|>{"name": function name, "parameters": dictionary}{% endif %}', LLAMA3_JSON),
    ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", MISTRAL),
    ("{% if tools %}<tool_call><function=name>arguments{% endif %}", None),
    ("{% if tools %}[TOOL_CALLS]name[ARGS]{% endif %}", None),
    ("<tool_call> arguments", None), ("{{ messages }}", None), (None, None),
])
def test_formats_are_told_by_the_template(template: str | None, form: Any):
    class Stub:
        tool_template = template

    assert call_format("auto", Stub()) == form      # type: ignore[arg-type]
    assert call_format("none", Stub()) is None      # type: ignore[arg-type]
    assert call_format("mistral", Stub()) is MISTRAL      # type: ignore[arg-type]


def test_the_flags_name_what_there_is():
    for name in FORMATS:
        assert ServerSettings(tool_call_parser=name).tool_call_parser == name
    with pytest.raises(ValueError, match="tool_call_parser='x' is not known"):
        ServerSettings(tool_call_parser="x")
    with pytest.raises(ValueError, match="reasoning_parser='x' is not known"):
        ServerSettings(reasoning_parser="x")
