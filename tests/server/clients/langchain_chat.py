"""`python langchain_chat.py URL MODEL`: LangChain's ChatOpenAI prints what it got as JSON."""

import json
import sys
from typing import Any, Literal

from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]


class Place(BaseModel):
    """A place and its unit."""

    city: Literal["Paris", "Rome"]
    unit: Literal["C", "F"]


def main() -> None:
    chat = ChatOpenAI(base_url=URL, api_key="x", model=MODEL, temperature=0, max_retries=0)     # pyright: ignore
    short = chat.bind(max_tokens=8)
    forced = chat.bind_tools([Place], tool_choice="Place")
    streamed: Any = None
    for chunk in forced.stream("Hello"):
        streamed = chunk if streamed is None else streamed + chunk
    print(json.dumps({
        "text": short.invoke("Hello").content,
        "streamed": "".join(str(chunk.content) for chunk in short.stream("Hello")),
        "tool": _called(forced.invoke("Hello")), "streamed_tool": _called(streamed),
        "object": chat.with_structured_output(Place, method="json_schema").invoke("Hello").model_dump(),
    }))


def _called(message: Any) -> Any:
    (call,) = message.tool_calls
    return [call["name"], call["args"]]


main()
