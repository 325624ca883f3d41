"""The jinja2 environment that published chat templates are written for.

It offers what Hugging Face's templates rely on: loop controls, `tojson` that keeps Unicode, `raise_exception`,
`strftime_now`, and `{% generation %}` blocks (which mark the assistant's words for training and print as is).
"""

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_REPEATED = 1 << 20
_MAX_EXPONENT = 64


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Immutable values, no private attributes, ranges of at most MAX_RANGE, no strings or numbers blown up."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, int) and right > _MAX_EXPONENT:
            raise TemplateError(f"exponent {right} is too large")
        for value, times in ((left, right), (right, left)):
            if isinstance(value, (str, list, tuple)) and isinstance(times, int) and len(value) * times > MAX_REPEATED:
                raise TemplateError(f"a value repeated {times} times is too long")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    tags = {"generation"}      # noqa: RUF012 - jinja2's own interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
