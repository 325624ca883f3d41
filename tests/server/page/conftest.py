"""The chat page in a real Chromium, before a server that answers as the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from actions import DESKTOP
from browser import FLAGS, Watch, find_chromium, serve_app
from scripted_server import ScriptedServer


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
def visit(chromium: Any, server: ScriptedServer) -> Iterator[Callable[..., Any]]:
    """Opens the page; afterwards nothing may have left its origin, and the console must be silent."""
    contexts, watched = [], []
    with serve_app(server.app) as url:
        def open_page(quiet: bool = True, **options: Any) -> Any:
            context = chromium.new_context(**(DESKTOP | options))
            context.set_default_timeout(10_000)
            contexts.append(context)
            page = context.new_page()
            watched.append((Watch(page), quiet))
            page.goto(url)
            return page

        yield open_page
        for context in contexts:
            context.close()
        for watch, quiet in watched:
            assert {u for u in watch.urls if not u.startswith((url + "/", "data:"))} == set()
            if quiet:
                assert watch.complaints == []
