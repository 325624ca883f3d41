"""Refusals, broken streams, servers that load or are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from actions import answer, ask, shoot, until, wait_for_end
from scripted_server import ScriptedServer


@pytest.mark.parametrize(("refusal", "expected"), [
    ((400, "max_tokens=9 is too many", {}), "max_tokens=9 is too many"),
    ((429, "7 requests are waiting", {"Retry-After": "3"}), "7 requests are waiting. Try again in 3 s."),
])
def test_errors_are_readable_and_can_be_retried(
    visit: Callable[..., Any], server: ScriptedServer, refusal: Any, expected: str
) -> None:
    server.refusal = refusal
    page = visit(quiet=False)
    ask(page, "Hi")
    alert = answer(page).get_by_role("alert")
    alert.wait_for()
    assert alert.inner_text().removesuffix("Try again").strip() == expected
    shoot(page, f"error-{refusal[0]}")
    server.refusal = None
    page.get_by_role("button", name="Try again").click()
    page.get_by_text("Hello there.").wait_for()
    assert page.locator(".message.user").count() == page.locator(".message.assistant").count() == 1
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(("how", "expected"), [
    ("silently", "The answer broke off"), ("the model could not go on", "the model could not go on"),
])
def test_a_stream_that_breaks_off(
    visit: Callable[..., Any], server: ScriptedServer, how: str, expected: str
) -> None:
    server.breaks_off = how
    page = visit(quiet=False)
    ask(page, "Hi")
    alert = answer(page).get_by_role("alert")
    alert.wait_for()
    assert alert.inner_text().startswith(expected)
    assert answer(page).locator(".text").inner_text() == "Hello there."      # what came is kept
    server.breaks_off = None
    page.get_by_role("button", name="Try again").click()
    wait_for_end(page)
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_server_that_is_gone(visit: Callable[..., Any]) -> None:
    page = visit(quiet=False)
    until(page, "document.getElementById('model').value === 'tiny'")
    page.context.set_offline(True)
    ask(page, "Hi")
    answer(page).get_by_text("The server cannot be reached").wait_for()
    page.context.set_offline(False)


def test_a_server_that_still_compiles(visit: Callable[..., Any], server: ScriptedServer) -> None:
    server.stats["num_compiling"] = 3
    page = visit()
    page.get_by_text("Still compiling (3 left)").wait_for()
    server.stats["num_compiling"] = 0
    page.locator("#state").wait_for(state="hidden")


def test_a_model_that_is_loading(visit: Callable[..., Any], server: ScriptedServer) -> None:
    loaded, server.stats = server.stats, {"status": "loading", "model": "tiny"}
    page = visit(quiet=False)
    page.get_by_text("The model is loading").wait_for()
    assert "3" not in page.locator("#running").inner_text()
    server.refusal = (503, "the model is still loading", {"Retry-After": "5"})
    ask(page, "Hi")      # is answered as soon as it can be
    page.get_by_role("button", name="Stop").wait_for()
    server.stats, server.refusal = loaded, None
    wait_for_end(page)
    assert answer(page).locator(".text").inner_text() == "Hello there."
    until(page, "document.getElementById('running').textContent === '3/32'")
    assert page.locator("#state").is_hidden()
