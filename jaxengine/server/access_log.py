"""Structured logs: every line is one JSON object or `key=value` text, and holds nothing of a client's unescaped.

Control characters, escape sequences and line breaks come out as \\u escapes, and a client's own texts are cut, so
nobody can forge a line or reach the terminal of whoever reads it.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, TextIO

MAX_CHARS = 256

log = logging.getLogger("jaxengine.access")


@dataclass
class AccessRecord:
    """One HTTP request, filled while it is served. Times in seconds; None and empty fields are left out."""

    request_id: str
    method: str
    endpoint: str                    # the route's path, not the client's
    status: int | None = None        # None: no response was sent
    model: str | None = None
    user: str | None = None
    stream: bool | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    queue: float | None = None       # from arrival to the first step
    ttft: float | None = None        # from arrival to the first token
    e2e: float | None = None         # from the request's first byte to the response's last
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None         # the error's code
    client_abort: bool = False       # the client left before the end

    def items(self) -> dict[str, Any]:
        """What the line shows."""
        shown = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None or value == [] or value is False:
                continue
            shown[f.name] = round(value, 6) if isinstance(value, float) else value
        return shown

    def write(self, level: int = logging.INFO) -> None:
        """Logs the line at one of logging's levels."""
        if log.isEnabledFor(level):
            log.log(level, "request", extra={"items": self.items()})


class LineFormatter(logging.Formatter):
    """A record as one line; `items`, a dict on the record, become fields of it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time.replace("+00:00", "Z"), "level": record.levelname.lower(), "logger": record.name,
                "message": _cut(record.getMessage(), 16 * MAX_CHARS)}
        line |= {key: _cut(value, MAX_CHARS) for key, value in getattr(record, "items", {}).items()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        if self.form == "json":
            return _escaped(line)
        time, level, name, message = (line.pop(key) for key in ("time", "level", "logger", "message"))
        rest = "".join(f" {key}={_bare(value)}" for key, value in line.items() if key != "traceback")
        below = "".join(f"\n    | {_inside(row)}" for row in line.get("traceback", "").splitlines())
        return f"{time} {level} {name}: {_inside(message)}{rest}{below}"


def configure_logging(form: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Sends every log as lines to `stream` (standard error) and nowhere else: ours from `level` on, those of other
    packages from warnings on. form and level: see ServerSettings.log_format and log_level."""
    handler = logging.StreamHandler(stream or sys.stderr)
    if form == "auto":
        form = "text" if handler.stream.isatty() else "json"
    handler.setFormatter(LineFormatter(form))
    handler.addFilter(_is_news)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("jaxengine").setLevel(level.upper())


def _is_news(record: logging.LogRecord) -> bool:
    """uvicorn takes a WebSocket handshake that was refused with a response for one that nobody answered."""
    return record.name != "uvicorn.error" or "without completing handshake" not in record.getMessage()


def _cut(value: Any, limit: int) -> Any:
    if isinstance(value, str) and len(value) > limit:
        return value[:limit] + "..."
    return value


def _escaped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)


def _inside(text: str) -> str:
    """Escaped as in JSON, without the quotes."""
    return _escaped(text)[1:-1].replace('\\"', '"')


def _bare(value: Any) -> str:
    """A value of a `key=value` line: quoted where it is not one plain word."""
    text = _escaped(value)
    inner = text[1:-1]
    return inner if isinstance(value, str) and inner and all(c.isalnum() or c in "._-/:" for c in inner) else text
