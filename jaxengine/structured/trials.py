"""The parent's side of trial.py: child processes, started when needed, killed when a grammar takes too long."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxengine.structured.vocabulary import GrammarVocabulary

CPU_S = 2.0            # of CPU time for one grammar
WALL_S = 10.0          # by the clock, where other work holds the CPU
START_S = 60.0
MEMORY_BYTES = 1 << 30
_SCRIPT = Path(__file__).with_name("trial.py")


@dataclass(frozen=True)
class Verdict:
    """error: why a grammar is refused, None where it is sound. grammar: the text to compile."""

    error: str | None
    grammar: str


class Trials:
    """Tries grammars in child processes, one for each thread that tries at the same time. Thread-safe."""

    def __init__(self, vocabulary: GrammarVocabulary, parser_limits: dict[str, Any], cpu_s: float = CPU_S) -> None:
        self._hello = json.dumps({
            "path": sys.path, "tokens": [token.decode("latin-1") for token in vocabulary.tokens],
            "special_ids": vocabulary.special_token_ids, "eos_ids": vocabulary.eos_ids,
            "parser_limits": parser_limits, "max_memory_bytes": MEMORY_BYTES, "cpu_s": cpu_s,
        })
        self._cpu_s = cpu_s
        self._idle: list[_Child] = []
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, _close_all, self._idle)

    def run(self, grammar: str, is_gbnf: bool = False) -> Verdict:
        """Compiles a grammar and follows it for a few tokens, elsewhere."""
        child = self._take()
        answer = child.ask(json.dumps({"grammar": grammar, "is_gbnf": is_gbnf}), WALL_S)
        if answer is None:
            child.close()
            refusal = f"it is too complex for the {self._cpu_s:g} s and the memory that compiling may take"
            return Verdict(refusal, grammar)
        with self._lock:
            self._idle.append(child)
        return Verdict(_readable(answer["error"]), answer["grammar"])

    def _take(self) -> _Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        child = _Child()
        if child.ask(self._hello, START_S) is None:
            child.close()
            raise RuntimeError(f"the process that tries grammars does not start: {sys.executable} -I {_SCRIPT}")
        return child


class _Child:
    """A child process that answers one JSON line by another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
        )

    def ask(self, line: str, timeout_s: float) -> dict[str, Any] | None:
        """None where the child ends instead of answering, by itself or because its time is over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        alarm = threading.Timer(timeout_s, self._process.kill)
        alarm.daemon = True
        alarm.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            alarm.cancel()
        return json.loads(answer) if answer.endswith("\n") else None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:      # what was not sent is not needed any more
                    continue


def _close_all(children: list[_Child]) -> None:
    for child in children:
        child.close()
    children.clear()


def _readable(error: str | None) -> str | None:
    """llguidance's own words, without what a crash of it would print."""
    if error is None:
        return None
    if error.startswith("panic") or "<backtrace>" in error:
        return "llguidance fails on it"
    if "NoExtension" in error:
        return "no text matches it"
    return " ".join(error.replace("<non-verbose/>", "").split())[:300]
