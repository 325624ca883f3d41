"""The one interface behind which every tokenizer stands."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxengine.tokenizer.chat_template import ChatTemplate
from jaxengine.tokenizer.detokenizer import IncrementalDetokenizer
from jaxengine.tokenizer.source import TokenizerSource


class Tokenizer:
    """Text to token ids and back.

    vocab_size: highest id + 1; a model may have more rows (padding) or, for ids it never saw, fewer.
    eos_token_ids: every token that ends a sequence. special_token_ids: those that `skip_special_tokens`
    leaves out of text.
    """

    def __init__(
        self, source: TokenizerSource, eos_token_ids: frozenset[int], chat_template: ChatTemplate | None
    ) -> None:
        self._vocabulary = source.vocabulary
        self._prefix_ids, self._suffix_ids = source.prefix_ids, source.suffix_ids
        self._template = chat_template
        self.vocab_size = source.vocabulary.size
        self.bos_token_id = source.bos_token_id
        self.eos_token_ids = eos_token_ids
        self.special_token_ids = source.vocabulary.special_ids

    @property
    def chat_template(self) -> str | None:
        """The text of the chat template that is used when there are no tools, if there is one."""
        return None if self._template is None else self._template.text

    @property
    def tool_template(self) -> str | None:
        """The text of the chat template that is used when there are tools."""
        return None if self._template is None else self._template.tool_text

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. The spelling of a special token in the text becomes that token, as in vLLM.

        add_special_tokens: put BOS (or EOS) where the tokenizer's own files say so.
        Raises ValueError for text that is not a string of whole Unicode characters.
        """
        if not isinstance(text, str):
            raise ValueError(f"text must be a string, found {type(text).__name__}")
        if not text.isascii():
            _check_characters(text)
        ids = self._vocabulary.encode(text)
        return [*self._prefix_ids, *ids, *self._suffix_ids] if add_special_tokens else ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Bytes that are not UTF-8 become U+FFFD; ids without a token become nothing.

        Raises ValueError for a negative id.
        """
        token_ids = list(token_ids)
        if token_ids and min(token_ids) < 0:
            raise ValueError(f"token id {min(token_ids)} is negative")
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return "".join([detokenizer.push(i) for i in token_ids]) + detokenizer.finish()

    def detokenizer(
        self, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> IncrementalDetokenizer:
        """Turns the ids that follow a prompt into text as they arrive."""
        return IncrementalDetokenizer(self._vocabulary, prompt_token_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; a word keeps the space before it, a special token its spelling."""
        return self._vocabulary.token_bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """One token as logprobs show it. A part of a character shows as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", self._vocabulary.byte_errors)

    def token_id(self, token: str) -> int | None:
        """The id of a token spelled as the vocabulary spells it, as "<|im_end|>"; None if there is none."""
        return self._vocabulary.id_of(token)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt's text for a conversation.

        messages: {"role": ..., "content": text or a list of text parts}, besides what the template knows.
        add_generation_prompt: open the assistant's turn. continue_final_message: leave the last message open,
        so that the model continues it. kwargs: further variables of the template.
        Raises ValueError for malformed messages, a template's own refusal, or a model without a template.
        """
        if self._template is None:
            raise ValueError(
                "this model has no chat template; use plain prompts, or give a template with --chat-template"
            )
        return self._template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=kwargs,
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> list[int]:
        """Token ids of `apply_chat_template(messages, **kwargs)`. The template writes BOS itself, if any."""
        return self.encode(self.apply_chat_template(messages, **kwargs), add_special_tokens=False)


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text has half of a surrogate pair, U+{ord(text[error.start]):04X}, at character {error.start}; "
            "send whole Unicode characters"
        ) from None
