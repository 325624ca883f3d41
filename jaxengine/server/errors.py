"""The one error shape of every path, and the errors that carry it.

    {"error": {"message": str, "type": str, "param": str | null, "code": str | null}}

The `openai` package shows only `message`, so that says everything: the field, its value, the remedy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error",
    429: "rate_limit_error", 431: "invalid_request_error", 500: "server_error", 503: "service_unavailable_error",
}


class ApiError(Exception):
    """Ends a request with this status and message. `headers` go into the response."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        kind = _TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def json(self) -> str:
        """Pure ASCII, so whatever the client sent can be quoted in it."""
        return json.dumps(self.body())

    def response(self) -> Response:
        return Response(self.json(), self.status, self.headers, "application/json")


class ClientLeftError(Exception):
    """Nobody reads the answer any more."""


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def overloaded(message: str, retry_after: float, status: int = 429) -> ApiError:
    """The same request may succeed later."""
    code = "queue_full" if status == 429 else "unavailable"
    return ApiError(status, message, code=code, headers={"Retry-After": str(max(1, round(retry_after)))})


def failed(message: str, code: str) -> ApiError:
    """Our side failed in a way that a retry would only repeat; the header says so to OpenAI's clients."""
    return ApiError(500, message, code=code, headers={"X-Should-Retry": "false"})


def shown(value: object, limit: int = 100) -> str:
    """A client's value as a message may quote it: escaped and short."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):      # an integer of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else text[:limit] + "..."
