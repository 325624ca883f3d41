"""What form a request's output must have. No llguidance here: see `jaxengine.structured`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FORMS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True)
class StructuredOutputs:
    """Exactly one form that the output is held to, token by token. Names as in vLLM's StructuredOutputsParams.

    json: a JSON schema, as an object or as JSON text. regex: a regular expression that the whole output
    matches (Rust's syntax; no look-around, no back-references). choice: the output is one of these texts.
    grammar: a context-free grammar in llguidance's dialect of Lark, whose first rule is `start`, or in GBNF,
    whose first rule is `root ::=`. json_object: any JSON object.

    disable_any_whitespace: json and json_object are written without white space between their parts.
    whitespace_pattern: a regular expression of the white space allowed there; by default up to 20 characters.
    """

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        self.validate()

    @property
    def form(self) -> str:
        """The name of the field that is set."""
        return next(name for name in FORMS if self._is_set(name))

    def validate(self) -> None:
        """Raises ValueError naming the field. Whether the schema or grammar makes sense is known once compiled."""
        given = [name for name in FORMS if self._is_set(name)]
        if len(given) != 1:
            found = "none is" if not given else f"{', '.join(given)} are"
            raise ValueError(f"structured_outputs: {found} set; set exactly one of {', '.join(FORMS)}")
        if not isinstance(self.json, (dict, str, type(None))):
            raise ValueError(f"structured_outputs.json={self.json!r} must be a schema: an object, or JSON text")
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"structured_outputs.{name}={value!r} must be a non-empty string")
        for name in ("json_object", "disable_any_whitespace"):
            if not isinstance(getattr(self, name), (bool, type(None))):
                raise ValueError(f"structured_outputs.{name}={getattr(self, name)!r} must be true or false")
        if self.choice is not None:
            _check_choice(self.choice)
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise ValueError("structured_outputs: disable_any_whitespace and whitespace_pattern exclude each other")
        if (self.disable_any_whitespace or self.whitespace_pattern is not None) and not given[0].startswith("json"):
            raise ValueError(f"structured_outputs: white space options go with json or json_object, not {given[0]}")

    def _is_set(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and not (name == "json_object" and value is False)


def _check_choice(choice: Any) -> None:
    if not isinstance(choice, (list, tuple)) or not choice:
        raise ValueError(f"structured_outputs.choice={choice!r} must be a list with at least one string")
    for text in choice:
        if not isinstance(text, str) or not text:
            raise ValueError(f"structured_outputs.choice: {text!r} must be a non-empty string")
