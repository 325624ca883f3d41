"""How byte-level BPE vocabularies cut text into words, by the name that GGUF gives it (`tokenizer.ggml.pre`).

A wrong rule gives wrong ids without any error, so a name is listed only where its rule is known from the
published tokenizer.json of the models that use it.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WHITE_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """Words with one leading other character, numbers, punctuation with its line ends, white space."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_WHITE_SPACE}"


def _cased_words(digits: str, contraction: str) -> str:
    """As `_words`, but a word also ends where lower case turns to upper case."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{_UPPER}*{_LOWER}+{contraction}|{lead}{_UPPER}+{_LOWER}*{contraction}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_WHITE_SPACE}"
    )


@dataclass(frozen=True)
class PreTokenizer:
    """pattern: regular expression whose matches are words; None: GPT-2's own. split_digits: each digit is a
    word. nfc: text is composed first. ignore_merges: a whole word in the vocabulary is not merged up.
    add_bos: what holds when the file does not say."""

    pattern: str | None = None
    split_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None)
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.split_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        return pre_tokenizers.Sequence([*steps, byte_level]) if steps else byte_level


_GPT2 = PreTokenizer()
_GPT2_DIGITS = PreTokenizer(split_digits=True)
_LLAMA3 = PreTokenizer(_words(r"\p{N}{1,3}"), ignore_merges=True, add_bos=True)

PRE_TOKENIZERS = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _GPT2_DIGITS,
    "starcoder": _GPT2_DIGITS,
    "refact": _GPT2_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": PreTokenizer(_words(r"\p{N}"), nfc=True),
    "tekken": PreTokenizer(_cased_words(r"\p{N}", ""), ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizer(_cased_words(r"\p{N}{1,3}", _CONTRACTION + "?"), ignore_merges=True),
}


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """Raises ValueError naming an unknown rule and the known ones."""
    if name not in PRE_TOKENIZERS:
        raise ValueError(
            f"tokenizer.ggml.pre={name!r} names a pre-tokenizer that is not known here, and a guess would give "
            f"wrong token ids; known: {', '.join(PRE_TOKENIZERS)}. Use the model's Hugging Face folder instead"
        )
    return PRE_TOKENIZERS[name]
