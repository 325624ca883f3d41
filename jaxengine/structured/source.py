"""From what a request asks for to the text that llguidance compiles."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from jaxengine.structured.limits import check_text, read_schema
from jaxengine.structured_outputs import StructuredOutputs

# Some models fill a page with line ends where a grammar lets them: 20 characters are a deep indentation.
WHITE_SPACE = r"[ \t\r\n]{1,20}"
_GBNF_RULE = re.compile(r"^[ \t]*[A-Za-z][\w-]*[ \t]*::=", re.MULTILINE)


@dataclass(frozen=True)
class GrammarSource:
    """A grammar's text as llguidance reads it, or GBNF that is still to be converted."""

    text: str
    is_gbnf: bool = False


def grammar_source(outputs: StructuredOutputs) -> GrammarSource:
    """Raises ValueError for what goes beyond the limits."""
    check_text(outputs)
    if outputs.json is not None:
        return GrammarSource(json_grammar(outputs.json, outputs))
    if outputs.json_object:
        return GrammarSource(json_grammar({"type": "object"}, outputs))
    if outputs.choice is not None:
        # One terminal: alternatives of rules would each be followed by themselves.
        choices = " | ".join(lark_string(text) for text in outputs.choice)
        return GrammarSource(lark_grammar(f"start: CHOICE\nCHOICE: {choices}\n"))
    if outputs.regex is not None:
        return GrammarSource(lark_grammar(f"start: {regex_terminal(outputs.regex)}\n"))
    assert outputs.grammar is not None
    if _GBNF_RULE.search(outputs.grammar):
        return GrammarSource(outputs.grammar, is_gbnf=True)
    return GrammarSource(lark_grammar(outputs.grammar))


def lark_grammar(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]}, ensure_ascii=False)


def json_grammar(schema: dict[str, Any] | str, outputs: StructuredOutputs | None = None) -> str:
    """A grammar of JSON texts that a schema allows."""
    schema, _ = read_schema(schema)
    options: dict[str, Any] = {"whitespace_pattern": WHITE_SPACE}
    if outputs is not None and outputs.disable_any_whitespace:
        options = {"whitespace_flexible": False}
    elif outputs is not None and outputs.whitespace_pattern is not None:
        options = {"whitespace_pattern": outputs.whitespace_pattern}
    return json.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": options}}]}, ensure_ascii=False)


def regex_terminal(regex: str) -> str:
    """The expression between Lark's slashes, its own slashes and line ends escaped."""
    out, escaped = "", False
    for char in regex:
        spelled = {"/": "/" if escaped else "\\/", "\n": "n" if escaped else "\\n"}.get(char, char)
        escaped = char == "\\" and not escaped
        out += spelled
    return f"/{out}/"


def lark_string(text: str) -> str:
    """A text as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def object_rule(schema: str) -> str:
    """JSON of a schema, given as checked JSON text, within a Lark rule; on one line."""
    return "%json " + json.dumps({**json.loads(schema), "x-guidance": {"whitespace_pattern": " "}})
