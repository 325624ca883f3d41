"""What the HTTP side counts. Only the event loop writes here.

Labels come from the tables below and from the routes, never from a request: whatever a client sends, the number of
time series stays what it is.
"""

from __future__ import annotations

REFUSALS: tuple[str, ...] = (
    "invalid", "too_long", "too_large", "unauthorized", "not_found", "queue_full", "timeout", "unavailable", "failed",
    "other",
)
_BY_STATUS = {
    400: "invalid", 401: "unauthorized", 403: "unauthorized", 404: "not_found", 405: "not_found", 408: "timeout",
    413: "too_large", 415: "invalid", 422: "invalid", 429: "queue_full", 431: "too_large", 500: "failed",
    503: "unavailable",
}
OTHER = "other"      # the endpoint of a path that has no route


def refusal(status: int, code: str | None) -> str:
    """The reason, one of REFUSALS, behind an error's status and code."""
    if code == "context_length_exceeded":
        return "too_long"
    return _BY_STATUS.get(status, "other")


class HttpRecorder:
    """Responses by endpoint and status, and the requests that were turned away or failed."""

    def __init__(self) -> None:
        self.refused = dict.fromkeys(REFUSALS, 0)
        self.responses: dict[tuple[str, int], int] = {}

    def answered(self, endpoint: str, status: int) -> None:
        """A response was sent. `endpoint` is a route's path or OTHER; `status` is one that this server sends."""
        self.responses[endpoint, status] = self.responses.get((endpoint, status), 0) + 1

    def turned_away(self, status: int, code: str | None) -> None:
        """A request was answered with an error, or its stream ended with one."""
        self.refused[refusal(status, code)] += 1
