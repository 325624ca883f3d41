"""Compiles grammars away from the threads that must not wait, and keeps them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from jaxengine.structured.compiled import CompiledGrammar, Entry, GrammarCache
from jaxengine.structured.source import grammar_source
from jaxengine.structured.trials import Trials
from jaxengine.structured.vocabulary import GrammarVocabulary, load_llguidance
from jaxengine.structured_outputs import StructuredOutputs
from jaxengine.tokenizer import Tokenizer

# Work per mask, in llguidance's units: measured, a mask takes 0.03 ms as a rule and 20 ms at the most with these.
PARSER_LIMITS = {
    "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 50_000, "step_max_items": 50_000, "max_items_in_row": 5000,
    "max_lexer_states": 50_000, "max_grammar_size": 200_000, "verbose_errors": False,
}
THREADS = 2


class GrammarError(ValueError):
    """A grammar that is refused. form: the field of StructuredOutputs; reason: what is wrong with it."""

    def __init__(self, form: str, reason: str) -> None:
        super().__init__(f"structured_outputs.{form}: {reason}")
        self.form, self.reason = form, reason


class GrammarCompiler:
    """Makes CompiledGrammars for one model. Thread-safe; the engine's thread and event loops only submit."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Iterable[int], num_rows: int) -> None:
        """num_rows: V, the rows of the model's logits. The vocabulary is read when the first grammar comes."""
        self._model = tokenizer, frozenset(eos_token_ids), num_rows
        self.cache = GrammarCache()
        self._tools: tuple[GrammarVocabulary, Trials] | None = None
        self._lock = threading.Lock()
        self._tools_lock = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")

    def submit(self, outputs: StructuredOutputs) -> Future[CompiledGrammar]:
        """Starts to compile. The future raises GrammarError for a grammar that is refused, and ValueError
        where llguidance is not installed."""
        return self._threads.submit(self._compile, outputs)

    def compile(self, outputs: StructuredOutputs) -> CompiledGrammar:
        """Compiles, or finds in the cache, while the caller waits."""
        return self.submit(outputs).result()

    def _compile(self, outputs: StructuredOutputs) -> CompiledGrammar:
        try:
            source = grammar_source(outputs)
        except ValueError as error:
            raise GrammarError(outputs.form, str(error)) from None
        key = hashlib.blake2b(f"{source.is_gbnf:d}{source.text}".encode()).digest()
        with self._lock:
            entry = self.cache.get(key)
        if entry is None:
            verdict = self._ready()[1].run(source.text, source.is_gbnf)
            entry = Entry(verdict.error, verdict.grammar if verdict.error is None else "")
        compiled = entry.compiled
        if compiled is None and entry.error is None:
            compiled = entry.compiled = self._build(entry)
        with self._lock:
            self.cache.put(key, entry)
        if compiled is None:
            assert entry.error is not None
            raise GrammarError(outputs.form, entry.error)
        return compiled

    def _build(self, entry: Entry) -> CompiledGrammar | None:
        llguidance, (vocabulary, _) = load_llguidance(), self._ready()
        limits = llguidance.LLParserLimits(**PARSER_LIMITS)
        handle = llguidance.LLMatcher(vocabulary.handle, entry.text, log_level=0, limits=limits)
        if handle.is_error():      # the trial found nothing: its limits are these
            entry.error = f"llguidance refuses what it took before: {handle.get_error()[:100]}"
            return None
        return CompiledGrammar(handle, vocabulary, entry.text)

    def _ready(self) -> tuple[GrammarVocabulary, Trials]:
        with self._tools_lock:
            if self._tools is None:
                vocabulary = GrammarVocabulary(*self._model)
                self._tools = vocabulary, Trials(vocabulary, PARSER_LIMITS)
            return self._tools
