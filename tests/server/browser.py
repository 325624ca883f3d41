"""A real Chromium for the page's tests, and a server that answers as the test says."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str:
    """Skips where there is none, and fails with CI_REQUIRE_BROWSER=1."""
    path = next((found for found in map(shutil.which, NAMES) if found), None)
    if path is None:
        tell = pytest.fail if os.environ.get("CI_REQUIRE_BROWSER") == "1" else pytest.skip
        tell("needs a Chromium: apt-get install chromium")
    return path


@contextmanager
def serve_app(app: ASGIApp) -> Iterator[str]:
    """Serves an app on a free port of this machine; yields its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


class Watch:
    """What a page asked for and complained about."""

    def __init__(self, page: Any) -> None:
        self.urls: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.urls.append(request.url))
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
