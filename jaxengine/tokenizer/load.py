"""From an opened checkpoint to its tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from jaxengine.tokenizer.chat_template import ChatTemplate
from jaxengine.tokenizer.end_of_sequence import end_of_sequence_ids
from jaxengine.tokenizer.gguf_source import MODEL_KEY, gguf_source
from jaxengine.tokenizer.huggingface_source import huggingface_source
from jaxengine.tokenizer.source import DEFAULT_TEMPLATE
from jaxengine.tokenizer.tokenizer import Tokenizer

_MAX_TEMPLATE_BYTES = 1 << 20


class OpenedCheckpoint(Protocol):
    """What is needed of a checkpoint: where it lies, GGUF metadata ({} otherwise) and its two configs."""

    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def generation_config(self) -> dict[str, Any]: ...


def load_tokenizer(checkpoint: OpenedCheckpoint, chat_template: str | None = None) -> Tokenizer:
    """The checkpoint's tokenizer: GGUF metadata where it has a vocabulary, else the folder's files.

    chat_template: replaces the checkpoint's templates. Text with a `{` or a line end in it is a template;
    anything else is the path of a file that holds one.
    Raises ValueError naming the file or key that is missing, malformed or not supported.
    """
    path = Path(checkpoint.path)
    if MODEL_KEY in checkpoint.metadata:
        source = gguf_source(checkpoint.metadata)
    elif path.is_dir():
        source = huggingface_source(path)
    else:
        raise ValueError(f"{path} has no vocabulary: {MODEL_KEY} is missing from its metadata")
    templates: Mapping[str, str] = source.chat_templates
    if chat_template is not None:
        templates = {DEFAULT_TEMPLATE: _template_text(chat_template)}
    eos_ids = end_of_sequence_ids(source, templates.values(), checkpoint.config, checkpoint.generation_config)
    return Tokenizer(source, eos_ids, ChatTemplate(templates, source.named_tokens) if templates else None)


def _template_text(given: str) -> str:
    if "{" in given or "\n" in given:
        return given
    path = Path(given).expanduser()
    if not path.is_file():
        raise ValueError(f"chat_template={given!r} is neither a jinja template nor a file that holds one")
    if path.stat().st_size > _MAX_TEMPLATE_BYTES:
        raise ValueError(f"chat_template={given!r} is larger than {_MAX_TEMPLATE_BYTES} bytes: not a template")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"chat_template={given!r} is not UTF-8 text: {error.reason}") from None
