"""From the text of a choice to content and tool calls, in pieces as they come."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from typing import Any

from jaxengine.server.chat_stage import ChatDelta
from jaxengine.server.tool_calls.formats import CallFormat
from jaxengine.server.tool_calls.scanner import CallScanner

_SPACE = re.compile(r"\s*")                     # one run of a class: nothing to go back for
_BETWEEN = re.compile(r"[ \t\r\n,;\[\]]*")      # what may stand around calls


class ToolCallStage:
    """A ChatStage. What is no call is content; a call that was begun is a call, however it goes on.

    forced: a grammar made the text, so it holds calls from its first character on.
    """

    def __init__(self, form: CallFormat, names: Collection[str], forced: bool, is_named: bool = False) -> None:
        self._form, self._names, self._forced, self._is_named = form, names, forced, is_named
        self._text, self._at = "", 0             # what has come, and how far it was read
        self._content: list[str] = []            # of this push
        self._scanner: CallScanner | None = None
        self._in_calls = forced
        self._skipped: list[str] = []            # an opener and what followed it, until there is a call
        self._at_start = True                    # nothing but white space has come
        self._num_calls = 0
        self._announced = False                  # whether the call being read was told of

    def finish_reason(self, reason: str) -> str:
        called = self._num_calls > 0 or self._announced
        return "tool_calls" if reason == "stop" and called and not self._is_named else reason

    def push(self, text: str, finished: bool) -> ChatDelta:
        delta = ChatDelta()
        self._text, self._at = self._text[self._at:] + text, 0
        while self._at < len(self._text) and self._step(delta, finished):
            pass
        if finished and not self._announced:      # cut before it was a call
            self._content += self._skipped
            self._content += [] if self._scanner is None else [self._scanner.raw]
        delta.content = "".join(self._content)
        self._content.clear()
        return delta

    def _step(self, delta: ChatDelta, finished: bool) -> bool:
        """Reads on; False where more must come first."""
        if self._scanner is not None:
            return self._read_call(self._scanner, delta)
        if self._in_calls:
            return self._read_between(finished)
        return self._read_content(finished)

    def _read_content(self, finished: bool) -> bool:
        text, at, opener = self._text, self._at, self._form.opener
        if self._at_start:
            start = _end(_SPACE, text, at)
            if start == len(text) and not finished:
                return False
            self._at_start = False
            if self._form.bare and text.startswith("{", start):
                self._at, self._scanner = start, CallScanner()
                return True
        found = text.find(opener, at) if opener else -1
        if found >= 0:
            # The line end before a call is no part of what was said.
            said = text[at:found].rstrip() if self._num_calls == 0 else text[at:found].strip()
            self._content.append(said)
            self._at, self._in_calls, self._skipped = found + len(opener), True, [opener]
            return True
        said = text[at:]
        if not finished:
            said = said[: len(said) - _overlap(said, opener)].rstrip()
        self._content.append(said)
        self._at += len(said)
        return False

    def _read_between(self, finished: bool) -> bool:
        """Among calls: separators, openers and closers are skipped, an object is read, all else is content again."""
        text, opener = self._text, self._form.opener
        at = _end(_SPACE, text, self._at)
        if not (opener and _begins(text, at, opener)):      # an opener may begin with what else is a separator
            at = _end(_BETWEEN, text, at)
        self._skip_to(at)
        for mark in filter(None, (opener, self._form.closer)):
            if text.startswith(mark, at):
                self._skip_to(at + len(mark))
                return True
            if not finished and _begins(text, at, mark):
                return False
        if text.startswith("{", at):
            self._scanner = CallScanner()
            return True
        if at < len(text):      # whatever it is, it is no call
            self._content += self._skipped
            self._in_calls, self._at_start = self._forced, False
            self._skipped.clear()
        return at < len(text) and not self._forced

    def _skip_to(self, at: int) -> None:
        if self._skipped:
            self._skipped.append(self._text[self._at:at])
        self._at = at

    def _read_call(self, scanner: CallScanner, delta: ChatDelta) -> bool:
        self._at = scanner.push(self._text, self._at)
        if not self._announced and self._is_call(scanner):
            self._announced = True
            self._skipped.clear()
            delta.tool_calls.append(self._new_call(scanner.name))
        if self._announced:
            self._add_arguments(delta, scanner.take_arguments())
        elif scanner.failed or scanner.ended:
            self._content += [*self._skipped, scanner.raw]
            self._skipped.clear()
        if scanner.ended or scanner.failed:
            self._in_calls = self._announced
            self._num_calls += self._announced
            self._scanner, self._announced = None, False
        return True

    def _is_call(self, scanner: CallScanner) -> bool:
        """Known by its name. A bare object is one only if it names a tool and goes on to its arguments."""
        if scanner.name is None:
            return False
        if self._in_calls:
            return True
        return scanner.name in self._names and scanner.has_arguments

    def _new_call(self, name: str | None) -> dict[str, Any]:
        call_id = uuid.uuid4().hex[: self._form.id_length]
        return {
            "index": self._num_calls, "id": call_id if self._form.id_length == 9 else f"call_{call_id}",
            "type": "function", "function": {"name": name, "arguments": ""},
        }

    def _add_arguments(self, delta: ChatDelta, text: str) -> None:
        if not text:
            return
        if delta.tool_calls and delta.tool_calls[-1]["index"] == self._num_calls:
            delta.tool_calls[-1]["function"]["arguments"] += text
        else:
            delta.tool_calls.append({"index": self._num_calls, "function": {"arguments": text}})


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None      # each of these patterns matches nothing, too
    return match.end()


def _begins(text: str, at: int, mark: str) -> bool:
    """Whether the text from `at` on is, or may become, the mark."""
    return mark.startswith(text[at : at + len(mark)])


def _overlap(text: str, mark: str) -> int:
    """How many of the text's last characters might begin `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
