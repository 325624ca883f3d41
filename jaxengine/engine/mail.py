"""Several readers of one engine: whoever steps it hands the others their outputs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from jaxengine.engine.engine import Engine
from jaxengine.types import RequestOutput


class Mail:
    """The outputs of an engine's requests, for iterations that overlap, from one thread or several."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lock = threading.RLock()      # also held while requests are added, so that no output comes too early
        self._boxes: dict[str, deque[RequestOutput]] = {}     # by request; iterations share theirs among their requests

    def open(self, request_ids: list[str]) -> deque[RequestOutput]:
        box: deque[RequestOutput] = deque()
        self._boxes.update(dict.fromkeys(request_ids, box))
        return box

    def step(self, box: deque[RequestOutput], running: set[str]) -> bool:
        """Steps the engine unless there is something in `box` by now. False: none of `running` is there any more.

        The engine's requests are looked at under the lock, since other threads add to them.
        """
        with self.lock:
            if box:
                return True
            for output in self.engine.step():
                if output.request_id in self._boxes:
                    self._boxes[output.request_id].append(output)
            return bool(box) or any(request_id in self.engine.requests for request_id in running)

    def close(self, request_ids: set[str]) -> None:
        """Ends what still runs of these requests."""
        with self.lock:
            for request_id in request_ids:
                self._boxes.pop(request_id, None)
                self.engine.abort(request_id)


class Outputs(Iterator[RequestOutput]):
    """The outputs of some requests until all have ended. They are aborted when the reader leaves early.

    Made under the mail's lock, together with the requests.
    """

    def __init__(self, mail: Mail, request_ids: list[str]) -> None:
        self._mail, self._running = mail, set(request_ids)
        self._box = mail.open(request_ids)

    def __next__(self) -> RequestOutput:
        while not self._box:
            if not self._running:
                raise StopIteration
            if not self._mail.step(self._box, self._running):
                self._running.clear()      # somebody else aborted them
        output = self._box.popleft()
        if output.finished:
            self._running.discard(output.request_id)
            self._mail.close({output.request_id})
        return output

    def close(self) -> None:
        running, self._running = self._running, set()
        self._box.clear()
        self._mail.close(running)

    def __del__(self) -> None:
        if self._running:
            self.close()
