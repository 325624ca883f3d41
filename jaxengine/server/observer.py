"""Where the server tells what happens to requests: one place, so that logs and metrics need no other."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.server.errors import ApiError


@dataclass(frozen=True)
class Exchange:
    """One HTTP exchange that has ended. Text that came from the client is not escaped here.

    status: 499 where the client left before the response was complete.
    """

    request_id: str
    method: str
    path: str
    status: int
    seconds: float
    error: ApiError | None = None


class Observer:
    """Hears of every exchange and refusal, on the event loop. This one does nothing."""

    def exchange_ended(self, exchange: Exchange) -> None:
        """A response was sent, or the client left."""

    def refused(self, error: ApiError) -> None:
        """A request was answered with an error, before its response began or as the last event of its stream."""
