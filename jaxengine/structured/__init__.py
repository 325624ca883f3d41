"""Structured output: grammars compiled by llguidance, and which tokens each of a sequence's steps may take.

llguidance is optional (the extra `structured`) and imported when the first grammar comes.
"""

from jaxengine.structured.compiled import CompiledGrammar
from jaxengine.structured.compiler import GrammarCompiler, GrammarError
from jaxengine.structured.limits import read_schema
from jaxengine.structured.matcher import GrammarMatcher, fill_masks
from jaxengine.structured.source import lark_string, object_rule

__all__ = [
    "CompiledGrammar", "GrammarCompiler", "GrammarError", "GrammarMatcher", "fill_masks", "lark_string", "object_rule",
    "read_schema",
]
