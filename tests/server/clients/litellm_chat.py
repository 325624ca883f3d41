"""`python litellm_chat.py URL MODEL`: litellm prints what it got as JSON."""

import json
import os
import sys
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"      # else the import fetches prices

import litellm
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
ASK: Any = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "x", "temperature": 0, "num_retries": 0,
            "messages": [{"role": "user", "content": "Hello"}]}


class Place(BaseModel):
    city: Literal["Paris", "Rome"]
    unit: Literal["C", "F"]


WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": Place.model_json_schema()}}


def main() -> None:
    forced = ASK | {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    chunks = list(litellm.completion(**forced, stream=True))
    answer: Any = litellm.completion(**ASK, response_format=Place)
    print(json.dumps({
        "text": litellm.completion(**ASK, max_tokens=8).choices[0].message.content,
        "streamed": "".join(
            chunk.choices[0].delta.content or "" for chunk in litellm.completion(**ASK, max_tokens=8, stream=True)
        ),
        "completion": litellm.text_completion(
            **{k: v for k, v in ASK.items() if k != "messages"} | {"model": f"text-completion-openai/{MODEL}"},
            prompt="Hello", max_tokens=8,
        ).choices[0].text,
        "tool": _called(litellm.completion(**forced)),
        "streamed_tool": _called(litellm.stream_chunk_builder(chunks)),
        "object": json.loads(answer.choices[0].message.content),
    }))


def _called(answer: Any) -> Any:
    (call,) = answer.choices[0].message.tool_calls
    return [call.function.name, json.loads(call.function.arguments)]


main()
