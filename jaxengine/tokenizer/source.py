"""What a checkpoint's files say about its tokenizer, before it is put together."""

from dataclasses import dataclass, field

from jaxengine.tokenizer.vocabulary import Vocabulary

DEFAULT_TEMPLATE = "default"


@dataclass(frozen=True)
class TokenizerSource:
    """prefix_ids, suffix_ids: what surrounds an encoded text (BOS, rarely EOS). eos_ids: those declared by the
    tokenizer's own files. named_tokens: "bos_token", "eos_token", ... and their spelling, as chat templates
    use them. chat_templates: by name; the usual one is "default"."""

    vocabulary: Vocabulary
    prefix_ids: list[int] = field(default_factory=list)
    suffix_ids: list[int] = field(default_factory=list)
    bos_token_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    named_tokens: dict[str, str] = field(default_factory=dict)
    chat_templates: dict[str, str] = field(default_factory=dict)
