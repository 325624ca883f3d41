"""Where the server tells what happens to requests: one place, so that logs and metrics need no other."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.server.errors import ApiError
from jaxengine.server.usage import Usage


@dataclass(frozen=True)
class Work:
    """What an exchange generates. `usage` grows while it runs."""

    model: str
    user: str | None
    stream: bool
    usage: Usage


@dataclass(frozen=True)
class Exchange:
    """One HTTP exchange that has ended. Text that came from the client is not escaped here.

    status: 499 where the client left before the response was complete. started, ended: on time.monotonic's clock.
    """

    request_id: str
    method: str
    path: str
    status: int
    started: float
    ended: float
    error: ApiError | None = None
    work: Work | None = None


class Observer:
    """Hears of every exchange and refusal, on the event loop. This one does nothing."""

    def exchange_ended(self, exchange: Exchange) -> None:
        """A response was sent, or the client left."""

    def refused(self, error: ApiError) -> None:
        """A request was answered with an error, before its response began or as the last event of its stream."""
