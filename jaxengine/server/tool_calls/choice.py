"""What a request's tools and tool_choice ask for: which calls may be made, which must, and the grammar of those."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from jaxengine.server.errors import bad_request, shown
from jaxengine.server.model_service import ModelService
from jaxengine.server.protocol.tools import MAX_TOOLS, NAME_PATTERN
from jaxengine.server.tool_calls.formats import PLAIN, CallFormat, call_format, is_special
from jaxengine.server.tool_calls.parser import ToolCallStage
from jaxengine.structured import lark_string, object_rule, read_schema
from jaxengine.structured_outputs import StructuredOutputs

MAX_SCHEMA_BYTES = 256 * 1024
MAX_FORCED_CALLS = 16      # in one answer
_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True)
class Tools:
    """A request's tools that may be called. shown: as the template is to see them."""

    mode: Literal["auto", "required", "named"]
    shown: list[dict[str, Any]]
    names: frozenset[str]
    form: CallFormat
    special_marks: bool              # whether the format's marks are special tokens, which must stay in the text
    grammar: StructuredOutputs | None = None      # for calls that are forced

    def stage(self) -> ToolCallStage:
        return ToolCallStage(self.form, self.names, self.grammar is not None, self.mode == "named")


def read_tools(
    tools: list[Any] | None, choice: Any, parallel: bool, service: ModelService, option: str
) -> Tools | None:
    """None where nothing may be called. Raises ApiError 400. option: the flag --tool-call-parser."""
    schemas = _read_all(tools or [])
    mode, name = _read_choice(choice, schemas)
    if mode == "none":
        return None
    known = call_format(option, service.tokenizer)
    marks = [] if known is None else [mark for mark in (known.opener, known.closer) if mark]
    special = any(is_special(service.tokenizer, mark) for mark in marks)
    shown_tools, names = list(tools or ()), frozenset(schemas)
    if mode == "auto":
        if known is None:
            raise bad_request(
                "tool_choice='auto' needs a model whose way of calling tools is known; use 'none', 'required' or a "
                "named tool, or start the server with --tool-call-parser", "tool_choice")
        return Tools(mode, shown_tools, names, known, special)
    form = PLAIN if known is None or (special and not known.bare) else known
    if name is not None:
        schemas = {name: schemas[name]}
    most = 1 if mode == "named" or not parallel else MAX_FORCED_CALLS
    return Tools(mode, shown_tools, names, form, False, StructuredOutputs(grammar=_grammar(schemas, form, most)))


def _read_all(tools: list[Any]) -> dict[str, str]:
    """The JSON text of each tool's parameters, by name."""
    if len(tools) > MAX_TOOLS:
        raise bad_request(f"tools has {len(tools)} entries; at most {MAX_TOOLS} are allowed", "tools")
    schemas: dict[str, str] = {}
    for at, tool in enumerate(tools):
        name, schema = _read_tool(f"tools[{at}]", tool)
        if name in schemas:
            raise bad_request(f"tools[{at}].function.name={shown(name)} is there twice", "tools")
        schemas[name] = schema
    size = sum(len(text.encode()) for text in schemas.values())
    if size > MAX_SCHEMA_BYTES:
        raise bad_request(f"the tools' parameters have {size} bytes; at most {MAX_SCHEMA_BYTES} are allowed", "tools")
    return schemas


def _read_tool(where: str, tool: Any) -> tuple[str, str]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(function, dict):
        raise bad_request(f"{where} must be {{'type': 'function', 'function': {{'name': ...}}}}", "tools")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise bad_request(f"{where}.function.name={shown(name)} must be 1 to 64 letters, digits, '_' or '-'", "tools")
    for key, kind in (("description", str), ("strict", bool)):
        if not isinstance(function.get(key), (kind, type(None))):
            raise bad_request(f"{where}.function.{key}={shown(function[key])} must be a {kind.__name__}", "tools")
    if parameters is None:
        parameters = {"properties": {}, "additionalProperties": False}
    if not isinstance(parameters, dict):
        raise bad_request(f"{where}.function.parameters={shown(parameters)} must be an object or null", "tools")
    if parameters.get("type", "object") != "object":
        raise bad_request(f"{where}.function.parameters.type={shown(parameters['type'])} must be 'object'", "tools")
    try:
        return name, read_schema({**parameters, "type": "object"})[1]
    except ValueError as error:
        raise bad_request(f"{where}.function.parameters: {error}", "tools") from None


def _read_choice(choice: Any, schemas: dict[str, str]) -> tuple[Any, str | None]:
    if choice is None:
        return ("auto" if schemas else "none"), None
    if choice in ("none", "auto", "required"):
        if not schemas and choice != "none":
            raise bad_request(f"tool_choice={shown(choice)} needs tools", "tool_choice")
        return choice, None
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise bad_request(
            f"tool_choice={shown(choice)} must be 'none', 'auto', 'required' or "
            "{'type': 'function', 'function': {'name': ...}}", "tool_choice")
    if name not in schemas:
        raise bad_request(f"tool_choice names {shown(name)}, which is not among the tools", "tool_choice")
    return "named", name


def _grammar(schemas: dict[str, str], form: CallFormat, most: int) -> str:
    """Lark: one call, or up to `most`, of any of these tools."""
    before, after = form.around
    opener, closer = (f"{form.opener}\n", f"\n{form.closer}") if form.closer else ("", "")
    rules = []
    for at, (name, schema) in enumerate(schemas.items()):
        head = f'{opener}{{"name": {json.dumps(name)}, {json.dumps(form.arguments_key)}: '
        rules.append(f"call{at}: {lark_string(head)} {object_rule(schema)} {lark_string('}' + closer)}")
    calls = " | ".join(f"call{at}" for at in range(len(rules)))
    more = f" ({lark_string(form.separator)} call){{0,{most - 1}}}" if most > 1 else ""
    parts = [lark_string(before) if before else "", f"call{more}", lark_string(after) if after else ""]
    start = " ".join(filter(None, parts))
    return "\n".join([f"start: {start}", f"call: {calls}", *rules]) + "\n"
