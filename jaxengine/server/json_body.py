"""Reading a request's body: its type, its size, and strict JSON.

Python's own parser takes NaN, Infinity and 1e400, raises RecursionError for deep text and a plain ValueError
for integers of thousands of digits, and lets half of a surrogate pair through. Duplicate keys: the last wins.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from starlette.requests import Request

from jaxengine.server.errors import ApiError, ClientLeftError, bad_request, shown

_NOT_JSON = "the body is not valid JSON"
JSON_TYPES = ("application/json",)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises ApiError 413 as soon as more than `limit` bytes are announced or have come, and
    415 for another content type or any content encoding; ClientLeftError where the connection ends before it."""
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in JSON_TYPES:
        raise ApiError(415, "the Content-Type header must be application/json")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "a Content-Encoding is not supported; send the body as it is")
    length = headers.get("content-length", "")
    if length.isdigit() and (len(length) > 18 or int(length) > limit):
        raise _too_large(limit)
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError      # or was told already that what it sent is no HTTP
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


def parse_object(body: bytes | str) -> dict[str, Any]:
    """The JSON object in `body`. Raises ApiError 400 for everything else."""
    try:
        text = body.decode() if isinstance(body, bytes) else body
    except UnicodeDecodeError:
        raise bad_request("the body is not UTF-8 text") from None
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if "\\ud" in text or "\\uD" in text or not text.isascii():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise bad_request("the body holds half of a surrogate pair; send whole Unicode characters") from None
    except json.JSONDecodeError as error:
        raise bad_request(f"{_NOT_JSON}: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None
    except ValueError as error:      # of those below, or Python's own for an integer of thousands of digits
        raise bad_request(f"{_NOT_JSON}: {_reason(error)}") from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object")
    return value


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes")


class _NoNumberError(ValueError):
    """What JSON has no number for."""


def _reason(error: ValueError) -> str:
    return str(error) if isinstance(error, _NoNumberError) else "a number has too many digits"


def _no_constant(name: str) -> NoReturn:
    raise _NoNumberError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NoNumberError(f"{shown(text)} is out of range")
    return value
