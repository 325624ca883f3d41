"""The small files that lie beside a Hugging Face tokenizer: its config and its chat templates."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxengine.tokenizer.source import DEFAULT_TEMPLATE

MAX_FILE_BYTES = 1 << 28     # the largest published tokenizer.json has some 35 MB
CONFIG = "tokenizer_config.json"


def read_text(path: Path) -> str:
    """Raises ValueError naming the file where it is absurdly large or not UTF-8."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"{path} has {size} bytes; a tokenizer's file has at most {MAX_FILE_BYTES}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; {} where there is no such file. Raises ValueError naming the file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, found {type(value).__name__}")
    return value


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json over the older special_tokens_map.json."""
    return read_object(folder / "special_tokens_map.json") | read_object(folder / CONFIG)


def token_text(where: str, value: Any) -> str | None:
    """A special token, written as its text or as an object with the text as "content"."""
    text = value.get("content") if isinstance(value, Mapping) else value
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{CONFIG}: {where}={value!r} must be a token's text")
    return text


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """"bos_token", "eos_token" and whatever else ends in _token, with their texts."""
    texts = {
        name: token_text(name, value)
        for name, value in config.items()
        if name.endswith("_token") and not isinstance(value, bool)
    }
    return {name: text for name, text in texts.items() if text}


def flag(config: Mapping[str, Any], name: str) -> bool | None:
    """A switch that may be absent. Raises ValueError where it is neither true, false nor null."""
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{CONFIG}: {name}={value!r} must be true or false")
    return value


def read_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name. Files of their own win over tokenizer_config.json, where there may be one or a list."""
    templates = _configured_templates(config.get("chat_template"))
    processor = folder / "chat_template.json"
    if not templates:
        templates = _configured_templates(read_object(processor).get("chat_template"))
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = read_text(path)
    if (folder / "chat_template.jinja").is_file():
        templates[DEFAULT_TEMPLATE] = read_text(folder / "chat_template.jinja")
    return templates


def _configured_templates(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE: value}
    entries = value if isinstance(value, list) else [None]
    templates: dict[str, str] = {}
    for entry in entries:
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError("chat_template must be a template's text or a list of {'name': ..., 'template': ...}")
        templates[name] = text
    return templates
