"""The chat in a terminal, against a stand-in model that never stops by itself."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

# A chat whose model says "word " for ever, 100 times a second.
PROGRAM = """
import signal, sys, time
from types import SimpleNamespace
signal.signal(signal.SIGINT, signal.default_int_handler)      # whoever runs the tests may ignore it
import jaxengine
from jaxengine.cli.main import main
from jaxengine.types import CompletionOutput, RequestOutput, SamplingParams

class Model:
    engine = SimpleNamespace(max_model_len=50)
    tokenizer = SimpleNamespace(
        apply_chat_template=lambda messages, add_generation_prompt: " ".join(m["content"] for m in messages),
        encode=lambda text, add_special_tokens: text.split(),
    )
    def __enter__(self): return self
    def __exit__(self, *exc): print("closed")
    def default_sampling_params(self): return SamplingParams()
    def stream_chat(self, messages, params, output_kind):
        yield RequestOutput("0", None, [], [CompletionOutput(0, f"{len(messages)} messages")], finished=False)
        while messages[-1]["content"] != "short":
            time.sleep(0.01)
            yield RequestOutput("0", None, [], [CompletionOutput(0, " word")], finished=False)

jaxengine.LLM = lambda model, **options: Model()
sys.exit(main(["chat", "m"]))
"""


class Terminal:
    def __init__(self) -> None:
        self.fd, inner = pty.openpty()
        environment = os.environ | {"TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
            env=environment,
        )
        os.close(inner)
        self.seen = ""

    def expect(self, text: str, meanwhile: Callable[[], None] = lambda: None) -> str:
        """Reads until `text` comes; returns all since the last time. meanwhile: called once a second."""
        deadline, pause = time.monotonic() + 60, time.monotonic()
        while text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
            if time.monotonic() >= pause:
                meanwhile()
                pause += 1
            if select.select([self.fd], [], [], 0.2)[0]:
                self.seen += os.read(self.fd, 4096).decode()
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, line: str) -> None:
        os.write(self.fd, (line + "\n").encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        code = self.process.wait(timeout=60)
        os.close(self.fd)
        return code


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    if terminal.process.poll() is None:
        terminal.process.kill()
        terminal.process.wait()


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(terminal: Terminal):
    terminal.expect("50 tokens of context")
    terminal.expect("> ")
    terminal.type("long")
    terminal.expect("1 messages word word")
    terminal.interrupt()
    terminal.expect("[stopped]")
    terminal.expect("> ")
    terminal.type("short")
    terminal.expect("3 messages")      # the question, the part of an answer, the new question
    terminal.expect("> ")
    terminal.type("/exit")
    terminal.expect("closed")
    assert terminal.end() == 0


def test_ctrl_c_at_the_prompt_explains_how_to_leave(terminal: Terminal):
    terminal.expect("> ")
    # A signal between the prompt and the wait for a key is seen with the next one: a user presses it again.
    terminal.expect("/exit or Ctrl-D ends the chat", meanwhile=terminal.interrupt)
    terminal.expect("> ")
    os.write(terminal.fd, b"\x04")
    terminal.expect("closed")
    assert terminal.end() == 0


def test_a_message_that_cannot_be_answered_does_not_end_the_chat(terminal: Terminal):
    terminal.expect("> ")
    terminal.type("word " * 60)
    terminal.expect("error: the message has 60 tokens")
    terminal.expect("> ")
    terminal.type("short")
    terminal.expect("1 messages")
    terminal.expect("> ")
    terminal.type("/exit")
    terminal.expect("closed")
    assert terminal.end() == 0
