"""`python openai_python.py URL MODEL`: the openai package, of any major version, prints what it got as JSON."""

import json
import sys
from typing import Any, Literal

import openai
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
ASK: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False,
}}}
FORCED = ASK | {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}


class Place(BaseModel):
    city: Literal["Paris", "Rome"]
    unit: Literal["C", "F"]


def main() -> None:
    client = openai.OpenAI(base_url=URL, api_key="x", max_retries=0)
    chat = client.chat.completions
    whole = chat.create(**ASK, max_completion_tokens=8)
    chunks = list(chat.create(**ASK, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage == whole.usage
    call = chat.create(**FORCED).choices[0]
    assert call.finish_reason == "tool_calls"
    parsed = chat.parse(**ASK, response_format=Place).choices[0].message.parsed
    with chat.stream(**FORCED) as stream:
        streamed_call = stream.get_final_completion().choices[0]
    assert streamed_call.finish_reason == "tool_calls"
    print(json.dumps({
        "text": whole.choices[0].message.content,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "tool": _called(call), "streamed_tool": _called(streamed_call), "object": parsed.model_dump(),
        "error": _error(client),
    }))


def _called(choice: Any) -> Any:
    (call,) = choice.message.tool_calls
    return [call.function.name, json.loads(call.function.arguments)]


def _error(client: openai.OpenAI) -> list[Any]:
    try:
        client.chat.completions.create(**ASK, top_p=3)
    except openai.BadRequestError as error:
        return [error.status_code, error.param]
    raise AssertionError("top_p=3 was accepted")


main()
