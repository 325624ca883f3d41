"""Finding stop strings in text that arrives in pieces, without letting any part of one out."""

from collections import deque
from collections.abc import Iterable, Sequence


class StopStrings:
    """Watches one sequence's text for stop strings.

    The match is the one that is complete first, and the longest of those that end together: what a reader of
    single characters would find, so it does not depend on how the text was cut into pieces.
    The automaton is Aho and Corasick's (1975): its state is the longest end of the text so far that begins a
    stop string, which is exactly what has to be held back. Time per character does not grow with the number
    or the length of the strings.
    """

    def __init__(self, stops: Iterable[str], include: bool = False) -> None:
        """include: keep the stop string in the text. Raises ValueError for an empty stop string."""
        self._patterns = _Patterns(list(stops))
        self._include = include
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """Takes more text; returns what may be shown and the stop string that ended it, if one did.

        armed=False reads on without stopping (`min_tokens` is not reached yet); a stop string that ends in
        later, armed text is still found. After a match nothing more is shown.
        """
        if self._matched is not None:
            return "", self._matched
        patterns, state = self._patterns, self._state
        if state == 0 and patterns.starts.isdisjoint(text):
            return text, None      # nearly every piece: no stop string begins in it
        for at, char in enumerate(text):
            state = patterns.step(state, char)
            stop = patterns.stop[state]
            if stop is not None and armed:
                self._matched = stop
                return self._up_to_match(self._held + text[: at + 1], stop), stop
        self._state = state
        pending = self._held + text
        keep = len(pending) - patterns.depth[state]
        self._held = pending[keep:]
        return pending[:keep], None

    def finish(self) -> str:
        """The text still held back when the sequence ended without a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _up_to_match(self, pending: str, stop: str) -> str:
        self._held = ""
        return pending if self._include else pending[: len(pending) - len(stop)]


class _Patterns:
    """The automaton. Per state: its children by character, the state of its longest proper end, the number
    of characters it stands for, and the longest stop string that ends there."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.children: list[dict[str, int]] = [{}]
        self.fail = [0]
        self.depth = [0]
        self.stop: list[str | None] = [None]
        for stop in stops:
            if not stop:
                raise ValueError(f"stop={list(stops)!r}: every stop string must be a non-empty string")
            self._add(stop)
        self._link()
        self.starts = frozenset(self.children[0])

    def step(self, state: int, char: str) -> int:
        while char not in self.children[state]:
            if state == 0:
                return 0
            state = self.fail[state]
        return self.children[state][char]

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self.children[state]:
                self.children[state][char] = len(self.children)
                self.children.append({})
                self.fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.stop.append(None)
            state = self.children[state][char]
        self.stop[state] = stop

    def _link(self) -> None:
        """Breadth first, so that a state's failure state, which is shorter, is ready before it."""
        queue = deque(self.children[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self.children[state].items():
                self.fail[child] = self.step(self.fail[state], char)
                queue.append(child)
            if self.stop[state] is None:
                self.stop[state] = self.stop[self.fail[state]]
