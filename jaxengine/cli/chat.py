"""Talks with a model; it remembers the conversation.

In a terminal: /reset forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer.
Without a terminal every line of standard input is one message, and the chat ends with it:

  jaxengine chat smollm2-135m-instruct
  printf 'My name is Ada.\\nWhat is my name?\\n' | jaxengine chat smollm2-135m-instruct --temperature 0
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from threading import Event

from jaxengine.cli.conversation import Conversation
from jaxengine.cli.engine_flags import add_model_arguments, open_llm
from jaxengine.cli.sampling_flags import add_sampling_arguments, sampling_options

with suppress(ImportError):      # not on every platform
    import readline  # noqa: F401  (line editing and history for input())

USAGE = "MODEL [options]"
MAX_TOKENS = 512
NOT_HERE = ("n", "logprobs", "prompt_logprobs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    add_sampling_arguments(parser, MAX_TOKENS, leave_out=NOT_HERE)


def run(args: argparse.Namespace) -> int:
    options = sampling_options(args, MAX_TOKENS)
    interactive = sys.stdin.isatty()
    with open_llm(args) as llm:
        conversation = Conversation(llm, llm.default_sampling_params().replace(n=1, **options), args.system)
        if interactive:
            _note(f"{args.model}, {conversation.max_tokens} tokens of context")
            _note("/reset forgets the conversation, /exit ends it, Ctrl-C stops an answer")
        for line in _lines(interactive):
            if line == "/exit":
                break
            if line == "/reset":
                conversation.reset()
                _note("a new conversation")
            elif line.startswith("/"):
                _note(f"unknown command {line.split()[0]}; there are /reset and /exit")
            elif line:
                try:
                    _answer(conversation, line, interactive)
                except ValueError as error:      # this message is too long, say; the next may not be
                    if not interactive:
                        raise
                    _note(f"error: {error}")
    return 0


def _lines(interactive: bool) -> Iterator[str]:
    """What the user types, or the lines of standard input, stripped; until the end of either."""
    while True:
        try:
            yield (input("> ") if interactive else next(sys.stdin)).strip()
        except (EOFError, StopIteration):
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            _note("\n/exit or Ctrl-D ends the chat")


def _answer(conversation: Conversation, text: str, interactive: bool) -> None:
    """Prints the answer while it is made. In a terminal Ctrl-C ends the answer and not the chat."""
    interrupt = _interrupt_as_wish() if interactive else nullcontext(Event())
    with interrupt as stop, closing(conversation.say(text)) as reply:
        for piece in reply:
            print(piece, end="", flush=True)
            if stop.is_set():
                conversation.notes.append("stopped")
                break
    print(flush=True)
    for note in conversation.notes:
        _note(f"[{note}]")


@contextmanager
def _interrupt_as_wish() -> Iterator[Event]:
    """Ctrl-C sets the event, so that the answer ends between two steps and the engine stays whole.

    A second Ctrl-C does not wait for the step.
    """
    wish = Event()

    def on_interrupt(signum: int, frame: object) -> None:
        if wish.is_set():
            raise KeyboardInterrupt
        wish.set()

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield wish
    finally:
        signal.signal(signal.SIGINT, previous)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
