"""Compiled grammars, and the cache of them: bounded by bytes, in memory alone."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from jaxengine.structured.matcher import GrammarMatcher, Wear
from jaxengine.structured.vocabulary import GrammarVocabulary

CACHE_BYTES = 64 << 20
# llguidance does not tell its memory. These bounds hold for grammars of every kind that was measured; the
# lexer, which all matchers of a grammar share, remembers more with every new text that it reads.
_BASE_BYTES, _PER_BYTE, _PER_TOKEN = 512 << 10, 150, 4 << 10
_WORN_TOKENS = 4096           # then a grammar is compiled anew, which takes milliseconds
_VERDICT_BYTES = 1 << 10


@dataclass(frozen=True, eq=False)
class CompiledGrammar:
    """A sound grammar. Any number of sequences may follow it, each by a matcher of its own."""

    handle: Any
    vocabulary: GrammarVocabulary
    text: str
    wear: Wear = field(default_factory=Wear)

    def matcher(self) -> GrammarMatcher:
        """At the start of the grammar."""
        return GrammarMatcher(self.handle.deep_copy(), self.vocabulary, self.wear)

    @property
    def is_worn(self) -> bool:
        return self.wear.failed or self.wear.num_tokens > _WORN_TOKENS

    @property
    def num_bytes(self) -> int:
        return _BASE_BYTES + _PER_BYTE * len(self.text) + _PER_TOKEN * self.wear.num_tokens


@dataclass
class Entry:
    """What is known of a grammar: why it is refused, or its text once found sound, and maybe compiled."""

    error: str | None
    text: str
    compiled: CompiledGrammar | None = None
    charged: int = 0      # what the cache counts for it

    @property
    def num_bytes(self) -> int:
        return _VERDICT_BYTES + len(self.text) + (0 if self.compiled is None else self.compiled.num_bytes)


class GrammarCache:
    """The entries used last, by key, within a number of bytes. One thread at a time."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Entry | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        if entry.compiled is not None and entry.compiled.is_worn:
            entry.compiled = None
        self._charge(entry)
        return entry

    def put(self, key: bytes, entry: Entry) -> None:
        self._remove(key)
        self._entries[key] = entry
        self._charge(entry)
        while self.num_bytes > self.max_bytes and len(self._entries) > 1:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry.charged
            entry.charged = 0

    def _charge(self, entry: Entry) -> None:
        """A grammar grows with use; what it has become is counted when it is touched."""
        self.num_bytes += entry.num_bytes - entry.charged
        entry.charged = entry.num_bytes
