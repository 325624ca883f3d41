"""Structured output: grammars compiled by llguidance, and which tokens each of a sequence's steps may take.

llguidance is optional (the extra `structured`) and imported when the first grammar comes.
"""

from jaxengine.structured.compiled import CompiledGrammar
from jaxengine.structured.compiler import GrammarCompiler, GrammarError
from jaxengine.structured.matcher import GrammarMatcher, fill_masks

__all__ = ["CompiledGrammar", "GrammarCompiler", "GrammarError", "GrammarMatcher", "fill_masks"]
