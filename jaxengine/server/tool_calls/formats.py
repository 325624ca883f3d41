"""How families of models write tool calls: a table, and which entry a chat template speaks of."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.tokenizer import Tokenizer


@dataclass(frozen=True)
class CallFormat:
    """A call is a JSON object with a name and, under `arguments_key`, its arguments.

    opener: the text that announces calls, before each or before all of them. closer: what follows each.
    bare: a text that begins with an object may be a call without an opener, if it names a tool.
    separator: what stands between calls. around: what encloses all of them.
    """

    name: str
    opener: str = ""
    closer: str = ""
    arguments_key: str = "arguments"
    bare: bool = False
    separator: str = "\n"
    around: tuple[str, str] = ("", "")
    id_length: int = 24


HERMES = CallFormat("hermes", opener="<tool_call>", closer="</tool_call>")
LLAMA3_JSON = CallFormat("llama3_json", opener="<|python_tag|>", arguments_key="parameters", bare=True, separator="; ")
MISTRAL = CallFormat("mistral", opener="[TOOL_CALLS]", separator=", ", around=("[", "]"), id_length=9)
# Where a model's own way is not known or cannot be forced: what a grammar makes it write.
PLAIN = CallFormat("plain", bare=True, separator=", ", around=("[", "]"))

FORMATS = {form.name: form for form in (HERMES, LLAMA3_JSON, MISTRAL)}


def call_format(option: str, tokenizer: Tokenizer) -> CallFormat | None:
    """The format that --tool-call-parser names, or that the template shows; None where it is not known."""
    if option in FORMATS:
        return FORMATS[option]
    return _detect(tokenizer.tool_template or "") if option == "auto" else None


def _detect(template: str) -> CallFormat | None:
    """By what only one family's templates hold. Other ways to write calls share some of these marks."""
    if "tools" not in template:
        return None
    if "<tool_call>" in template and "arguments" in template and not _has(template, "<function=", "<arg_key>"):
        return HERMES
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        return MISTRAL
    if "<|start_header_id|>" in template and '"parameters"' in template:
        return LLAMA3_JSON
    return None


def _has(template: str, *marks: str) -> bool:
    return any(mark in template for mark in marks)


def is_special(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text is a special token, which text leaves out and no grammar can write."""
    return bool(text) and tokenizer.token_id(text) in tokenizer.special_token_ids
