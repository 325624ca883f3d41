"""One line a request, and nothing of a client's that could forge or hide one."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from jaxengine.server.access_log import MAX_CHARS, AccessRecord, configure_logging
from jaxengine.server.settings import ServerSettings

NASTY = "a\nb\r\x1b[31mred\x1b[0m\x00\x7f\x85\x9b31m\u2028\u202e\ud800\"'\\ level=error"


@pytest.fixture(autouse=True)
def loggers_are_restored() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", "jaxengine")]
    saved = [(logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, saved, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)


def lines(form: str, *records: AccessRecord, level: str = "info", at: int = logging.INFO) -> list[str]:
    stream = io.StringIO()
    configure_logging(form, level, stream)
    for record in records:
        record.write(at)
    return stream.getvalue().split("\n")[:-1]


def full(**changes: Any) -> AccessRecord:
    values: dict[str, Any] = {
        "request_id": "req-1", "method": "POST", "endpoint": "/v1/chat/completions", "status": 200, "model": "tiny",
        "user": "u", "stream": True, "prompt_tokens": 12, "cached_tokens": 0, "output_tokens": 5, "queue": 0.0012345678,
        "ttft": 0.25, "e2e": 1.5, "finish_reasons": ["stop", "length"],
    }
    return AccessRecord(**(values | changes))


def test_json_line() -> None:
    (line,) = lines("json", full())
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "info", "logger": "jaxengine.access", "message": "request", "request_id": "req-1", "method": "POST",
        "endpoint": "/v1/chat/completions", "status": 200, "model": "tiny", "user": "u", "stream": True,
        "prompt_tokens": 12, "cached_tokens": 0, "output_tokens": 5, "queue": 0.001235, "ttft": 0.25, "e2e": 1.5,
        "finish_reasons": ["stop", "length"],
    }


def test_text_line() -> None:
    record = full(status=503, error="unavailable", client_abort=True, user="two words")
    (line,) = lines("text", record, at=logging.ERROR)
    _, _, rest = line.partition(" ")
    assert rest == (
        'error jaxengine.access: request request_id=req-1 method=POST endpoint=/v1/chat/completions status=503 '
        'model=tiny user="two words" stream=true prompt_tokens=12 cached_tokens=0 output_tokens=5 queue=0.001235 '
        'ttft=0.25 e2e=1.5 finish_reasons=["stop","length"] error=unavailable client_abort=true'
    )


def test_what_is_not_known_is_left_out() -> None:
    (line,) = lines("json", AccessRecord("r", "GET", "/health", 200))
    assert set(json.loads(line)) == {
        "time", "level", "logger", "message", "request_id", "method", "endpoint", "status",
    }


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("field", ["request_id", "model", "user"])
def test_client_text_is_escaped_and_cut(form: str, field: str) -> None:
    (line,) = lines(form, full(**{field: NASTY}))
    assert line.isascii()
    assert line.isprintable()
    if form == "json":
        assert json.loads(line)[field] == NASTY
    (line,) = lines(form, full(**{field: "x" * 100_000}))
    assert "x" * MAX_CHARS in line
    assert "x" * (MAX_CHARS + 1) not in line


@pytest.mark.parametrize("form", ["json", "text"])
def test_other_messages_are_one_line_too(form: str) -> None:
    stream = io.StringIO()
    configure_logging(form, "warning", stream)
    logger = logging.getLogger("jaxengine.engine.anything")
    logger.info("too quiet")
    logger.warning("model %s", NASTY)
    logging.getLogger("uvicorn.error").warning("bad\nrequest")
    logging.getLogger("another.package").info("too quiet")
    # What uvicorn says of each handshake that was refused with a response.
    logging.getLogger("uvicorn.error").error("ASGI callable returned without completing handshake.")
    first, second, end = stream.getvalue().split("\n")
    assert end == ""
    assert first.isascii()
    assert first.isprintable()
    assert "bad\\nrequest" in second


def test_a_traceback_cannot_forge_a_line() -> None:
    for form in ("json", "text"):
        stream = io.StringIO()
        configure_logging(form, "info", stream)
        try:
            raise RuntimeError("oops\n2030-01-01 info jaxengine.access: request forged=\x1b[2J")
        except RuntimeError:
            logging.getLogger("jaxengine").exception("failed")
        text = stream.getvalue()
        assert "\x1b" not in text
        assert not any(line.startswith("2030") for line in text.split("\n"))
        assert "RuntimeError" in text


def test_level_and_form_are_checked() -> None:
    assert lines("json", full(), level="warning") == []
    assert len(lines("json", full(), level="error", at=logging.ERROR)) == 1
    assert lines("auto", full())[0].startswith("{")      # not a terminal
    with pytest.raises(ValueError, match=r"log_format='xml'.*json, text"):
        ServerSettings(log_format="xml")
    with pytest.raises(ValueError, match="log_level='loud'"):
        ServerSettings(log_level="loud")
