"""Talking: messages, answers, settings, a new conversation."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from actions import DESKTOP, answer, ask, shoot, until, wait_for_end
from browser import Watch
from scripted_server import ScriptedServer


def test_a_message_streams_an_answer(visit: Callable[..., Any], server: ScriptedServer) -> None:
    server.pieces, server.delay = ["Hel", "lo ", "**you**"] + ["."] * 20, 0.05
    page = visit()
    ask(page, "Hi")
    until(page, "document.querySelector('.assistant .text').textContent.startsWith('Hello')")
    assert page.locator("#stop").is_visible()      # it shows while it streams
    assert page.locator("#log").get_attribute("aria-busy") == "true"
    wait_for_end(page)
    assert answer(page).locator(".text").inner_text() == "Hello you" + "." * 20
    assert answer(page).locator("strong").inner_text() == "you"
    assert re.search(r"23 tokens · [\d.]+ tok/s · first after [\d.]+ s", answer(page).inner_text())
    assert server.bodies == [{
        "model": "tiny", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.7,
        "max_tokens": 1024, "messages": [{"role": "user", "content": "Hi"}],
    }]
    assert page.evaluate("document.activeElement.id") == "message"
    server.delay = 0
    ask(page, "And?")
    wait_for_end(page)
    assert [m["role"] for m in server.bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert server.bodies[1]["messages"][1]["content"] == "Hello **you**" + "." * 20


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop(visit: Callable[..., Any], server: ScriptedServer, how: str) -> None:
    server.pieces, server.delay = ["word "] * 1000, 0.02
    page = visit()
    ask(page, "Go on for ever")
    until(page, "document.querySelector('.assistant .text').textContent.length > 20")
    if how == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    wait_for_end(page)
    assert "stopped" in answer(page).locator(".meta").inner_text()
    shown = answer(page).locator(".text").inner_text()
    page.wait_for_timeout(200)
    assert answer(page).locator(".text").inner_text() == shown
    assert server.left.is_set()      # the server saw it, too
    assert server.sent < 1000


def test_keys_of_the_composer(visit: Callable[..., Any], server: ScriptedServer) -> None:
    page = visit()
    box = page.get_by_label("Message", exact=True)
    page.keyboard.type("one")      # it has the focus from the start
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert box.input_value() == "one\ntwo"
    assert server.bodies == []
    page.keyboard.press("Enter")
    wait_for_end(page)
    assert server.bodies[0]["messages"][0]["content"] == "one\ntwo"
    assert box.input_value() == ""
    page.keyboard.type("   ")
    page.keyboard.press("Enter")      # nothing but spaces is no message
    assert len(server.bodies) == 1
    assert page.locator("#send").is_disabled()


def test_everything_is_reached_by_tab_and_has_a_name(visit: Callable[..., Any]) -> None:
    page = visit()
    until(page, "document.getElementById('model').value === 'tiny'")
    page.evaluate("document.activeElement.blur()")
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    wanted = ["reset", "theme", "open-settings", "message"]
    assert [s for s in seen if s in wanted][:4] == wanted
    unnamed = page.evaluate("""[...document.querySelectorAll('button, input, textarea, select')].filter(e =>
        !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)""")
    assert unnamed == []


def test_settings_are_sent_and_kept(visit: Callable[..., Any], server: ScriptedServer) -> None:
    page = visit()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Longest answer, tokens").fill("")
    page.keyboard.press("Tab")
    shoot(page, "settings")
    page.get_by_role("button", name="Done").click()
    page.reload()
    ask(page, "Hi")
    wait_for_end(page)
    assert server.bodies[0] == {
        "model": "tiny", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.5,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    }


def test_plain_continuation_and_a_choice_of_models(visit: Callable[..., Any], server: ScriptedServer) -> None:
    server.models = ["tiny", "tiny-too"]
    page = visit()
    page.get_by_label("Model").select_option("tiny-too")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Continue the text as it is").check()
    page.get_by_role("button", name="Done").click()
    ask(page, "Once upon")
    wait_for_end(page)
    assert server.paths == ["/v1/completions"]
    assert (server.bodies[0]["prompt"], server.bodies[0]["model"]) == ("Once upon", "tiny-too")
    assert answer(page).locator(".text").inner_text() == "Hello there."


def test_a_new_conversation(visit: Callable[..., Any], server: ScriptedServer) -> None:
    server.pieces, server.delay = ["word "] * 1000, 0.02
    page = visit()
    ask(page, "Hi")
    until(page, "document.querySelector('.assistant .text').textContent.length > 5")
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".message").count() == 0
    assert page.get_by_text("What shall we talk about?").is_visible()
    wait_for_end(page)
    server.pieces, server.delay = ["Fresh"], 0
    page.get_by_role("button", name="What is the capital of France?").click()
    page.get_by_text("Fresh").wait_for()
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "What is the capital of France?"}]


def test_load_is_shown(visit: Callable[..., Any], server: ScriptedServer) -> None:
    page = visit()
    until(page, "Number(document.getElementById('speed').textContent) > 0")
    assert page.locator("#running").inner_text() == "3/32"
    assert page.locator("#waiting").inner_text() == "7"
    assert page.locator("#usage").inner_text() == "25 %"
    assert 50 < float(page.locator("#speed").inner_text()) < 200
    until(page, "document.querySelector('#spark polyline').points.numberOfItems > 1")
    assert page.locator("#state").is_hidden()


def test_with_the_real_server(chromium: Any, serve: Callable[..., Any], until_idle: Callable[[], bool]) -> None:
    with serve(api_key=("sk-1",)) as wire:
        url = f"http://127.0.0.1:{wire.port}"
        context = chromium.new_context(**DESKTOP)
        context.set_default_timeout(20_000)
        page = context.new_page()
        watch = Watch(page)
        page.goto(url)
        page.get_by_role("dialog", name="API key").wait_for()
        page.keyboard.type("sk-1")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('model').value === 'tiny'")
        assert page.get_by_label("Model").locator("option").all_inner_texts() == ["tiny", "tiny-alias"]
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Longest answer, tokens").fill("20")
        page.get_by_role("button", name="Done").click()
        ask(page, "Hello")
        until(page, "document.querySelector('.assistant .meta') !== null")
        wait_for_end(page)
        messages = [{"role": "user", "content": "Hello"}]
        expected = wire.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 20},
                             Authorization="Bearer sk-1").json
        said = expected["choices"][0]["message"]["content"]
        assert answer(page).locator(".text").inner_text().split() == said.split()
        assert f"{expected['usage']['completion_tokens']} tokens" in answer(page).locator(".meta").inner_text()
        until(page, "document.getElementById('running').textContent === '0/8'")
        assert until_idle()
        # The 401s until the key was known are the browser's own notes; there is nothing else.
        assert all("401" in complaint for complaint in watch.complaints)
        assert {u for u in watch.urls if not u.startswith((url + "/", "data:"))} == set()
        context.close()
