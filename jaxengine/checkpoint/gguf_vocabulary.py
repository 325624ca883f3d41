"""What a converted checkpoint keeps of a GGUF file's metadata, so that its vocabulary can be rebuilt."""

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = "gguf_tokenizer.json"
_KEPT = ("tokenizer.", "general.architecture", "general.name")


def write_vocabulary(metadata: dict[str, Any], folder: Path) -> None:
    """Writes the entries a tokenizer needs; nothing where there are none."""
    kept = {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in metadata.items()
        if key.startswith(_KEPT)
    }
    if kept:
        (folder / FILE).write_text(json.dumps(kept, ensure_ascii=False), encoding="utf-8")


def read_vocabulary(folder: Path) -> dict[str, Any]:
    """The entries, with numeric arrays as numpy arrays as `read_gguf` gives them; {} without the file."""
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        entries = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(entries, dict):
        raise ValueError(f"{path} must hold a JSON object, found {type(entries).__name__}")
    return {key: _as_read(value) for key, value in entries.items()}


def _as_read(value: Any) -> Any:
    numeric = isinstance(value, list) and value and all(isinstance(v, (int, float)) for v in value)
    return np.asarray(value) if numeric else value
