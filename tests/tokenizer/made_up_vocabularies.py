"""Small vocabularies in the form of GGUF metadata, and a plain reading of how sentencepiece shows bytes."""

from collections.abc import Sequence
from typing import Any

from tokenizers import pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def metadata(model: str, tokens: list[tuple[str, int, float]], **entries: Any) -> dict[str, Any]:
    """tokens: (text, type, score)."""
    values = {
        "model": model,
        "tokens": [text for text, _, _ in tokens],
        "token_type": [kind for _, kind, _ in tokens],
        "scores": [score for _, _, score in tokens],
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | entries).items()}


def byte_level(
    pre: str, merges: Sequence[str] = ("a b",), special: Sequence[str] = (), **entries: Any
) -> dict[str, Any]:
    """256 bytes, then one token per merge, then control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [(text, NORMAL, 0.0) for text in [*alphabet, *(merge.replace(" ", "") for merge in merges)]]
    tokens += [(text, CONTROL, 0.0) for text in special]
    ids = {f"{name}_token_id": [text for text, _, _ in tokens].index(entries.pop(name))
           for name in ("bos", "eos", "eot", "eom") if name in entries}
    return metadata("gpt2", tokens, pre=pre, merges=list(merges), **ids, **entries)


def sentencepiece(**entries: Any) -> dict[str, Any]:
    """Llama 2's form: <unk>, <s>, </s>, 256 bytes, pieces by score, one user-defined token."""
    tokens = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    tokens += [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)]
    pieces = ["▁t", "he", "▁the", "▁▁", "▁a", "▁", "t", "h", "e", "a", "é", "日"]
    tokens += [(piece, NORMAL, -float(i)) for i, piece in enumerate(pieces)]
    tokens += [("  user", USER_DEFINED, 0.0)]
    ids = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return metadata("llama", tokens, **(ids | entries))


def without_broken_characters(data: bytes) -> str:
    """UTF-8 with one replacement character for each byte that belongs to no whole character."""
    text, at = "", 0
    while at < len(data):
        for width in (1, 2, 3, 4):
            try:
                text += data[at : at + width].decode()
            except UnicodeDecodeError:
                continue
            at += width
            break
        else:
            text, at = text + "\ufffd", at + 1
    return text
