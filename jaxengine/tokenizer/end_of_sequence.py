"""Which tokens end a sequence: gathered from every place that declares one."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxengine.tokenizer.source import TokenizerSource

# Tokens that close a turn. A chat template that writes one declares it: files often list only the token that
# closes a document, and a chat would never stop.
_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>")


def end_of_sequence_ids(
    source: TokenizerSource,
    chat_templates: Iterable[str],
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
) -> frozenset[int]:
    """Ids from generation_config.json, config.json (its text part too), the tokenizer's files (GGUF's eos, eot
    and eom ids among them) and turn ends that one of the chat templates in use writes.

    Raises ValueError for an eos_token_id that is neither an id nor a list of ids.
    """
    ids = set(source.eos_ids)
    ids |= _declared("generation_config.json", generation_config)
    ids |= _declared("config.json", config)
    text_config = config.get("text_config")
    if isinstance(text_config, Mapping):
        ids |= _declared("config.json: text_config", text_config)
    written = {turn_end for text in chat_templates for turn_end in _TURN_ENDS if turn_end in text}
    vocabulary = source.vocabulary
    return frozenset(ids | {i for i in vocabulary.special_ids if vocabulary.token_of(i) in written})


def _declared(where: str, config: Mapping[str, Any]) -> set[int]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
        raise ValueError(f"{where}: eos_token_id={value!r} must be a token id or a list of token ids")
    return set(ids)
