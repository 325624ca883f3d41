"""Reading one call, a JSON object, while it comes: one look at each character, nothing read twice."""

from __future__ import annotations

import json

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class CallScanner:
    """Takes the characters of an object from its brace on.

    name: known once it was read. ended: the object is complete. failed: it cannot be a call. raw: its text.
    The arguments come out of `take_arguments` as they come in, as JSON text.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.ended = self.failed = False
        self._raw: list[str] = []
        self._ready: list[str] = []             # of the arguments, not taken yet
        self._seen_arguments = False
        self._depth = 0
        self._in_string = self._escaped = False
        self._key: str | None = None            # of the top level; None while a key is expected
        self._piece: list[str] = []             # the text of the key or value being read
        self._streams = False                   # the value being read is arguments that go out as they come

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    @property
    def has_arguments(self) -> bool:
        return self._seen_arguments

    def push(self, text: str, at: int) -> int:
        """Reads from text[at] on; returns where it stopped: after the object, or where it failed."""
        while at < len(text) and not (self.ended or self.failed):
            self._read(text[at])
            at += 1
        return at

    def take_arguments(self) -> str:
        """What was read of the arguments since the last call of this."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def _read(self, char: str) -> None:
        self._raw.append(char)
        if self._in_string:
            self._read_in_string(char)
        elif char == '"':
            self._in_string = True
            self._keep(char)
        elif char in "{[":
            self._depth += 1
            if self._depth > 1:
                self._open(char)
            elif char == "[":
                self.failed = True
        elif char in "}]":
            self._close(char)
        elif self._depth == 1 and char == ":" and self._key is None:
            self._end_key()
        elif self._depth == 1 and char == ",":
            self._end_value()
        elif self._depth > 1 or char not in _SPACE:
            self._keep(char)

    def _read_in_string(self, char: str) -> None:
        self._keep(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False

    def _open(self, char: str) -> None:
        if self._depth == 2 and self._key in _ARGUMENTS and not self._seen_arguments and char == "{":
            self._streams = self._seen_arguments = True
        self._keep(char)

    def _close(self, char: str) -> None:
        self._depth -= 1
        if self._depth > 0:
            self._keep(char)
            if self._depth == 1:
                self._streams = False
            return
        self._end_value()
        self.ended = not self.failed and self.name is not None
        self.failed = not self.ended
        if self.ended and not self._seen_arguments:
            self._ready.append("{}")

    def _keep(self, char: str) -> None:
        (self._ready if self._streams else self._piece).append(char)

    def _end_key(self) -> None:
        key = self._decode()
        if isinstance(key, str):
            self._key = key
        else:
            self.failed = True

    def _end_value(self) -> None:
        key, self._key = self._key, None
        if key == "name":
            name = self._decode()
            if isinstance(name, str):
                self.name = name
            else:
                self.failed = True
        elif key in _ARGUMENTS and not self._seen_arguments:
            value = self._decode()
            self._seen_arguments = True
            # Some models write the object as a string, and none as null.
            self._ready.append("{}" if value is None else value if isinstance(value, str) else json.dumps(value))
        self._piece.clear()

    def _decode(self) -> object:
        text = "".join(self._piece)
        self._piece.clear()
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            self.failed = True
            return None
