"""The vocabulary inside a GGUF file as the two files that Hugging Face readers expect."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from jaxengine.tokenizer.gguf_source import MODEL_KEY, gguf_source
from jaxengine.tokenizer.source import DEFAULT_TEMPLATE
from jaxengine.tokenizer.tokenizers_vocabulary import TokenizersVocabulary


def write_huggingface_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json for GGUF `metadata`; nothing where it has no vocabulary."""
    if MODEL_KEY not in metadata:
        return
    source = gguf_source(metadata)
    assert isinstance(source.vocabulary, TokenizersVocabulary)
    tokenizer = Tokenizer.from_str(source.vocabulary.to_json())
    affixes = [*source.prefix_ids, *source.suffix_ids]
    if affixes:
        names = [[tokenizer.id_to_token(i) for i in ids] for ids in (source.prefix_ids, source.suffix_ids)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*names[0], "$A", *names[1]],
            special_tokens=[(tokenizer.id_to_token(i), i) for i in dict.fromkeys(affixes)],
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **source.named_tokens}
    if source.chat_templates:
        named = [{"name": name, "template": text} for name, text in source.chat_templates.items()]
        only = set(source.chat_templates) == {DEFAULT_TEMPLATE}
        config["chat_template"] = source.chat_templates[DEFAULT_TEMPLATE] if only else named
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False))
