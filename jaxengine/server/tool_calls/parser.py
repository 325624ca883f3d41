"""From the text of a choice to content and tool calls, in pieces as they come."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

from jaxengine.server.chat_stage import ChatDelta
from jaxengine.server.tool_calls.formats import CallFormat
from jaxengine.server.tool_calls.scanner import CallScanner

_BETWEEN = " \t\r\n,;[]"      # what may stand around calls


class ToolCallStage:
    """A ChatStage. What is no call is content; a call that was begun is a call, however it goes on.

    forced: a grammar made the text, so it holds calls from its first character on.
    """

    def __init__(self, form: CallFormat, names: Collection[str], forced: bool, is_named: bool = False) -> None:
        self._form, self._names, self._forced, self._is_named = form, names, forced, is_named
        self._text = ""                          # what no state has consumed yet
        self._scanner: CallScanner | None = None
        self._in_calls = forced
        self._at_start = True                    # nothing but white space has come
        self._num_calls = 0
        self._announced = False                  # whether the call being read was told of

    def finish_reason(self, reason: str) -> str:
        called = self._num_calls > 0 or self._announced
        return "tool_calls" if reason == "stop" and called and not self._is_named else reason

    def push(self, text: str, finished: bool) -> ChatDelta:
        delta = ChatDelta()
        self._text += text
        while self._text and self._step(delta, finished):
            pass
        if finished and self._scanner is not None and not self._announced:
            delta.content += self._scanner.raw      # cut before it was a call
            self._scanner = None
        return delta

    def _step(self, delta: ChatDelta, finished: bool) -> bool:
        """Consumes some text; False where more must come first."""
        if self._scanner is not None:
            return self._read_call(self._scanner, delta)
        if self._in_calls:
            return self._read_between(finished)
        return self._read_content(delta, finished)

    def _read_content(self, delta: ChatDelta, finished: bool) -> bool:
        text, form = self._text, self._form
        if self._at_start:
            if not text.strip() and not finished:
                return False
            self._at_start = False
            if form.bare and text.lstrip().startswith("{"):
                self._text, self._scanner = text.lstrip(), CallScanner()
                return True
        at = text.find(form.opener) if form.opener else -1
        if at >= 0:
            # The line end before a call is no part of what was said.
            delta.content += text[:at].rstrip() if self._num_calls == 0 else text[:at].strip()
            self._text, self._in_calls = text[at + len(form.opener):], True
            return True
        held = 0 if finished else _overlap(text, form.opener)
        end = len(text) - held
        spaces = 0 if finished else len(text[:end]) - len(text[:end].rstrip())
        end -= spaces
        delta.content += text[:end]
        self._text = text[end:]
        return False

    def _read_between(self, finished: bool) -> bool:
        """Among calls: separators, openers and closers are skipped, an object is read, all else is content again."""
        form, text = self._form, self._text.lstrip(_BETWEEN if not self._starts_marker() else " \t\r\n")
        self._text = text
        for mark in (form.opener, form.closer):
            if mark and text.startswith(mark):
                self._text = text[len(mark):]
                return True
            if mark and not finished and mark.startswith(text):
                return False
        if text.startswith("{"):
            self._scanner = CallScanner()
            return True
        if text:      # whatever it is, it is no call
            self._in_calls, self._at_start = self._forced, False
        return bool(text) and not self._forced

    def _starts_marker(self) -> bool:
        """An opener may begin with what else is a separator."""
        text, opener = self._text.lstrip(), self._form.opener
        return bool(opener) and opener[0] in _BETWEEN and (text.startswith(opener) or opener.startswith(text))

    def _read_call(self, scanner: CallScanner, delta: ChatDelta) -> bool:
        end = scanner.push(self._text, 0)
        self._text = self._text[end:]
        if not self._announced and self._is_call(scanner):
            self._announced = True
            delta.tool_calls.append(self._new_call(scanner.name))
        if self._announced:
            self._add_arguments(delta, scanner.take_arguments())
        elif scanner.failed or scanner.ended:
            delta.content += scanner.raw
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


def _overlap(text: str, mark: str) -> int:
    """How many of the text's last characters might begin `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
