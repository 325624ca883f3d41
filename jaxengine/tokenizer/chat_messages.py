"""Checking and simplifying the messages of a conversation before a template sees them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of the messages with content as one string. Raises ValueError naming the message and field.

    Text parts are joined with line ends and a tool call's arguments, JSON on the wire, become an object, both
    as vLLM does it.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ValueError("messages must be a non-empty list of {'role': ..., 'content': ...}")
    return [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def check_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Copies of the tools' schemas; None where there is none."""
    if tools is None or len(tools) == 0:
        return None
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise ValueError(f"tools[{i}] must be an object with the tool's schema, found {type(tool).__name__}")
    return [dict(tool) for tool in tools]


def _message(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} must be an object with role and content, found {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ValueError(f"{where}.role={role!r} must be a non-empty string, as 'user'")
    copy = dict(message)
    calls = message.get("tool_calls")
    if calls is not None:
        copy["tool_calls"] = [_tool_call(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(calls)]
    content = message.get("content")
    if content is None and not calls:
        raise ValueError(f"{where}.content is missing; a {role} message needs text")
    copy["content"] = _text(f"{where}.content", content)
    return copy


def _text(where: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ValueError(f"{where} must be a string or a list of text parts, found {type(content).__name__}")
    return "\n".join(_part(f"{where}[{i}]", part) for i, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise ValueError(f"{where} must be a text part, found {type(part).__name__}")
    kind = part.get("type", "text")
    if kind != "text":
        raise ValueError(f"{where}.type={kind!r} is not supported: this engine reads text only")
    if not isinstance(part.get("text"), str):
        raise ValueError(f"{where}.text must be a string")
    return part["text"]


def _tool_call(where: str, call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise ValueError(f"{where} must be an object, found {type(call).__name__}")
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        raise ValueError(f"{where}.function.arguments is not JSON") from None
    return {**call, "function": {**function, "arguments": arguments}}
