"""What a schema, expression or grammar may ask for: checked before llguidance sees it, in linear time."""

from __future__ import annotations

import json
import re
from typing import Any

from jaxengine.structured_outputs import StructuredOutputs

MAX_BYTES = 256 * 1024        # of a schema
MAX_GRAMMAR_BYTES = 2 * MAX_BYTES
MAX_DEPTH = 64                # schemas within schemas
MAX_PROPERTIES = 1000         # in a whole schema
MAX_INTEGER = 2**53           # of enum and const
MAX_ENUM = 5000               # enum values in a whole schema, or choices
MAX_REGEX_BYTES = 4096
MAX_REPEAT = 10_000           # any count: {m,n} in an expression, minItems, maxLength and their like
MAX_NESTED_REPEATS = 1_000_000      # as 1000 * 1000 for ([a-z]{1,1000} ){1,1000}

_COUNTS = tuple(f"{bound}{what}" for bound in ("min", "max") for what in ("Length", "Items", "Properties", "Contains"))
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LITERALS = ("enum", "const", "default", "examples")      # values, not schemas
_REPEAT = re.compile(r"(?<!\\[uUxp])\{(\d*)(?:,(\d*))?\}")      # not \u{20000}


def read_schema(given: dict[str, Any] | str) -> tuple[dict[str, Any], str]:
    """A schema and its JSON text. Raises ValueError for what is not a JSON object or goes beyond the limits."""
    try:
        schema = json.loads(given, parse_constant=_no_constant) if isinstance(given, str) else given
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the schema is not JSON: {_reason(error)}") from None
    if not isinstance(schema, dict):
        raise ValueError(f"a schema must be an object, not {type(schema).__name__}")
    _check_bytes(text, MAX_BYTES)
    _SchemaWalk().check(schema)
    return schema, text


def check_text(outputs: StructuredOutputs) -> None:
    """The limits of regex, choice, grammar and whitespace_pattern."""
    for text in (outputs.regex, outputs.whitespace_pattern):
        if text is not None:
            check_regex(text)
    if outputs.grammar is not None:
        _check_bytes(outputs.grammar, MAX_GRAMMAR_BYTES)
        _check_repeats(outputs.grammar)
    if outputs.choice is not None:
        _at_most("texts", len(outputs.choice), MAX_ENUM)
        _check_bytes("".join(outputs.choice), MAX_BYTES)


def check_regex(text: str) -> None:
    _check_bytes(text, MAX_REGEX_BYTES)
    _check_repeats(text)
    _at_most("repeats of a part by counts within counts", _nested_repeats(text), MAX_NESTED_REPEATS)


class _SchemaWalk:
    """Counts over a whole schema. Goes down only as far as is allowed, so a deep one cannot exhaust the stack."""

    def __init__(self) -> None:
        self._properties = self._enum_values = 0

    def check(self, schema: Any, depth: int = 1) -> None:
        if not isinstance(schema, dict):
            return      # true, false, or wrong: llguidance tells
        _at_most("levels of schemas", depth, MAX_DEPTH)
        if "x-guidance" in schema:
            raise ValueError("x-guidance is not for requests; use whitespace_pattern or disable_any_whitespace")
        for key in _COUNTS:
            if _is_number(schema.get(key)):
                _at_most(key, schema[key], MAX_REPEAT)
        if isinstance(schema.get("pattern"), str):
            check_regex(schema["pattern"])
        if isinstance(schema.get("enum"), list):
            self._enum_values += len(schema["enum"])
            _at_most("enum values", self._enum_values, MAX_ENUM)
        _check_integers([schema.get("enum"), schema.get("const")])
        for key, value in schema.items():
            if key not in _LITERALS:
                self._check_children(key, value, depth)

    def _check_children(self, key: str, value: Any, depth: int) -> None:
        if key in _SCHEMA_MAPS and isinstance(value, dict):
            if key.endswith("roperties"):
                self._properties += len(value)
                _at_most("properties", self._properties, MAX_PROPERTIES)
            if key == "patternProperties":
                for pattern in value:
                    check_regex(pattern)
            children = list(value.values())
        else:
            children = value if isinstance(value, list) else [value]
        for child in children:
            self.check(child, depth + 1)


def _check_integers(values: list[Any]) -> None:
    """llguidance reads values as float64, and would write another integer than the one that was asked for."""
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise ValueError(
                f"the integer {value} in enum or const is beyond {MAX_INTEGER}: it cannot be kept exactly; "
                "make it a text"
            )


def _check_repeats(text: str) -> None:
    for match in _REPEAT.finditer(text):      # one group of digits at a time: linear
        for digits in match.groups(""):
            if len(digits) > len(str(MAX_REPEAT)) or (digits and int(digits) > MAX_REPEAT):
                raise ValueError(f"the repeat {match[0][:40]} counts beyond {MAX_REPEAT}")


def _nested_repeats(regex: str) -> int:
    """The most often that counts within counts repeat any part of an expression."""
    groups, last, at = [1], 1, 0      # for each open group the most of its parts; for the part just read
    while at < len(regex):
        char, repeat = regex[at], _REPEAT.match(regex, at)
        if repeat is not None:
            last *= max([1, *(int(digits) for digits in repeat.groups("") if digits)])
        elif char == ")" and len(groups) > 1:
            last = groups.pop()
        else:
            last = 1
        groups[-1] = max(groups[-1], last)
        if char == "(":
            groups.append(1)
        elif char == "[":
            at = max(regex.find("]", at + 2), at)
        at += 2 if char == "\\" else len(repeat[0]) if repeat is not None else 1
    return max(groups)


def _check_bytes(text: str, limit: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("the text has half of a surrogate pair; send whole Unicode characters") from None
    _at_most("bytes", size, limit)


def _at_most(what: str, value: float, limit: int) -> None:
    if value > limit:
        raise ValueError(f"{value} {what}; at most {limit} are allowed")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
