"""The API key: asked for only when needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actions import answer, ask, shoot, until, wait_for_end
from scripted_server import ScriptedServer


def test_the_key_is_asked_for_only_when_needed(visit: Callable[..., Any], server: ScriptedServer) -> None:
    server.key = "sk-secret"
    page = visit(quiet=False)      # the browser itself notes each 401
    dialog = page.get_by_role("dialog", name="API key")
    dialog.wait_for()
    shoot(page, "key")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("The server did not accept that key.").wait_for()
    page.keyboard.type("sk-secret")
    page.keyboard.press("Enter")
    dialog.wait_for(state="hidden")
    until(page, "document.getElementById('model').value === 'tiny'")
    ask(page, "Hi")
    wait_for_end(page)
    assert answer(page).locator(".text").inner_text() == "Hello there."
    assert page.evaluate("[sessionStorage.length, JSON.stringify(localStorage)]")[0] == 1
    assert "sk-secret" not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
    page.get_by_text("Running", exact=True).wait_for()
    until(page, "document.getElementById('running').textContent === '3/32'")


def test_no_key_no_question(visit: Callable[..., Any]) -> None:
    page = visit()
    until(page, "document.getElementById('model').value === 'tiny'")
    assert page.locator("#key-dialog").is_hidden()
    page.get_by_role("button", name="Settings").click()
    assert page.locator("#forget-key").is_hidden()


def test_refusing_the_key_leaves_a_readable_page(visit: Callable[..., Any], server: ScriptedServer) -> None:
    server.key = "sk-secret"
    page = visit(quiet=False)
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    ask(page, "Hi")
    page.get_by_role("dialog").wait_for()
    page.get_by_role("button", name="Cancel").click()
    assert answer(page).get_by_role("alert").inner_text().startswith("This server needs an API key.")
