"""Tokenizers: ids from text, text from ids, chat templates, streaming.

    tokenizer = load_tokenizer(open_checkpoint("smollm2-135m-instruct"))
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hello"}])
    stream = tokenizer.detokenizer(ids)
"""

from jaxengine.tokenizer.detokenizer import IncrementalDetokenizer
from jaxengine.tokenizer.load import load_tokenizer
from jaxengine.tokenizer.stop_strings import StopStrings
from jaxengine.tokenizer.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "StopStrings", "Tokenizer", "load_tokenizer"]
