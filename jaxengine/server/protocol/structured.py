"""response_format and structured_outputs: read strictly, and what they mean to the engine."""

from __future__ import annotations

import re
from typing import Any

from jaxengine.server.errors import ApiError, bad_request, shown
from jaxengine.server.protocol.tools import NAME_PATTERN
from jaxengine.structured_outputs import FORMS, StructuredOutputs

_NAME = re.compile(NAME_PATTERN)
_OPTIONS = ("disable_any_whitespace", "whitespace_pattern")
_UNSUPPORTED = ("structural_tag", "disable_additional_properties", "disable_fallback", "backend", "_backend")

RESPONSE_FORMAT_SCHEMA = {
    "description": "The form of the answer: any text, any JSON object, or JSON of a schema.",
    "anyOf": [
        {"type": "null"},
        {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "json_object"]}}},
        {"type": "object", "required": ["type", "json_schema"], "properties": {
            "type": {"const": "json_schema"},
            "json_schema": {"type": "object", "required": ["name", "schema"], "properties": {
                "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"}, "schema": {"type": "object"},
                "description": {"type": ["string", "null"]}, "strict": {"type": ["boolean", "null"]},
            }},
        }},
    ],
}
STRUCTURED_OUTPUTS_SCHEMA = {
    "description": "vLLM's: exactly one of json, regex, choice, grammar (Lark or GBNF) and json_object.",
    "anyOf": [{"type": "null"}, {
        "type": "object", "minProperties": 1, "properties": {
            "json": {"type": ["object", "string"]}, "regex": {"type": "string", "minLength": 1},
            "choice": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
            "grammar": {"type": "string", "minLength": 1}, "json_object": {"type": "boolean"},
            "disable_any_whitespace": {"type": "boolean"}, "whitespace_pattern": {"type": "string", "minLength": 1},
        },
    }],
}


def read_form(response_format: Any, structured_outputs: Any) -> tuple[StructuredOutputs, str] | None:
    """The form that was asked for and the field that asked; None for free text. Raises ApiError 400."""
    form = None if response_format is None else _read_response_format(response_format)
    if structured_outputs is None:
        return None if form is None else (form, "response_format")
    if form is not None:
        raise bad_request("response_format and structured_outputs exclude each other", "structured_outputs")
    return _read_structured_outputs(structured_outputs), "structured_outputs"


def _read_response_format(value: Any) -> StructuredOutputs | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json_object=True)
    if kind != "json_schema":
        raise _wrong(f"response_format.type={shown(kind)} must be 'text', 'json_object' or 'json_schema'")
    given = value.get("json_schema")
    if not isinstance(given, dict):
        raise _wrong(f"response_format.json_schema={shown(given)} must be an object with name and schema")
    name, schema = given.get("name"), given.get("schema")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(f"response_format.json_schema.name={shown(name)} must be 1 to 64 letters, digits, '_' or '-'")
    for key, type_ in (("description", str), ("strict", bool)):
        if not isinstance(given.get(key), (type_, type(None))):
            raise _wrong(f"response_format.json_schema.{key}={shown(given[key])} must be a {type_.__name__}")
    if not isinstance(schema, dict):
        raise _wrong(f"response_format.json_schema.schema={shown(schema)} must be a JSON schema, an object")
    return StructuredOutputs(json=schema)


def _read_structured_outputs(value: Any) -> StructuredOutputs:
    if not isinstance(value, dict):
        raise bad_request(f"structured_outputs={shown(value)} must be an object", "structured_outputs")
    present = {key: item for key, item in value.items() if item is not None}
    for name in _UNSUPPORTED:
        if present.get(name, False) is not False:
            raise bad_request(f"structured_outputs.{name} is not supported", "structured_outputs")
    try:
        return StructuredOutputs(**{name: item for name, item in present.items() if name in (*FORMS, *_OPTIONS)})
    except ValueError as error:
        raise bad_request(ascii(str(error))[1:-1][:300], "structured_outputs") from None


def _wrong(message: str) -> ApiError:
    return bad_request(message, "response_format")
