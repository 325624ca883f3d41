"""The chat page in a real Chromium: what a user does, and what model output must not be able to do."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import FLAGS, Watch, find_chromium, serve
from scripted_server import ScriptedServer

from jaxengine.server.page import SCRIPTS, ChatPage

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
DESKTOP = {"viewport": {"width": 1280, "height": 800}}
SHOTS = os.environ.get("PAGE_SCREENSHOTS")      # a folder: keep pictures of the page there


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
    with serve(server.app) as url:
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


def ask(page: Any, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answer(page: Any) -> Any:
    return page.locator(".message.assistant").last


def wait_for_end(page: Any) -> None:
    page.locator("#send").wait_for(state="visible")


def until(page: Any, expression: str) -> None:
    """Playwright's own wait_for_function evaluates text inside the page, which the page's policy forbids."""
    deadline = time.monotonic() + 10
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"it never became true: {expression}"
        page.wait_for_timeout(20)


def shoot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))


def fits(page: Any) -> bool:
    return page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) <= innerWidth")


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


EVIL = """<img src="http://127.0.0.1:9/x.png" onerror="document.title='hacked'"><script>document.title='hacked'</script>
[link](javascript:alert(1)) ![picture](http://127.0.0.1:9/y.png) <a href="http://127.0.0.1:9/">z</a>

# <iframe src="http://127.0.0.1:9/"></iframe>
- <svg onload="document.title='hacked'"> `<b>code</b>` **<i>bold</i>**

```<script>
</code></pre><script>document.title='hacked'</script>
```
"""


def test_output_that_looks_like_html_stays_text(visit: Callable[..., Any], server: ScriptedServer) -> None:
    server.pieces = list(EVIL)      # one character at a time: every cut there is
    page = visit()
    ask(page, "<b>me</b><img src=x onerror=\"document.title='hacked'\">")
    wait_for_end(page)
    page.wait_for_timeout(200)
    assert page.title() == "tiny · jaxengine"
    tags = page.evaluate("[...new Set([...document.querySelectorAll('#log .text *')].map(e => e.localName))]")
    assert set(tags) <= {"p", "h3", "ul", "li", "code", "strong", "figure", "figcaption", "pre", "button"}
    attributes = page.evaluate("""[...new Set([...document.querySelectorAll('#log .text *')]
        .flatMap(e => e.getAttributeNames()))]""")
    assert set(attributes) <= {"class", "tabindex", "type"}
    text = answer(page).locator(".text").inner_text()
    for line in ('<img src="http://127.0.0.1:9/x.png"', "<script>document.title='hacked'</script>",
                 "[link](javascript:alert(1))", '<iframe src="http://127.0.0.1:9/"></iframe>', "<b>code</b>",
                 "</code></pre><script>document.title='hacked'</script>"):
        assert line in text
    assert page.locator(".message.user .text").inner_text().startswith("<b>me</b><img")


def test_markdown(visit: Callable[..., Any], server: ScriptedServer) -> None:
    code = "```python\nx = [3, 1]\n\nx.sort()\n```"
    server.pieces = list(f"Use `sort`:\n\n{code}\n\n1. one\n2. two **bold**\n\nDone.\n2 * 3 * 4")
    page = visit()
    ask(page, "How?")
    wait_for_end(page)
    text = answer(page).locator(".text")
    assert text.locator("pre code").inner_text() == "x = [3, 1]\n\nx.sort()"
    assert text.locator("figcaption").inner_text().startswith("python")
    assert text.locator("ol li").all_inner_texts() == ["one", "two bold"]
    assert text.locator("p").all_inner_texts() == ["Use sort:", "Done.\n2 * 3 * 4"]


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


def test_light_and_dark(visit: Callable[..., Any]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = visit(color_scheme="light"), visit(color_scheme="dark")
    assert light.evaluate(ground) == "rgb(251, 250, 248)"
    assert dark.evaluate(ground) == "rgb(22, 22, 21)"
    light.get_by_role("button", name="Switch between light and dark").click()
    assert light.evaluate(ground) == "rgb(22, 22, 21)"
    light.reload()
    assert light.evaluate(ground) == "rgb(22, 22, 21)"


LONG = ("A long answer with a very-long-word-" + "x" * 200 + " in it, and code:\n\n```python\n" + "value = 1 + " * 40
        + "0\n```\n\n- first point\n- second **point**\n\nIt ends with a sentence that is a little longer.")


def test_a_phone_scrolls_in_one_direction(visit: Callable[..., Any], server: ScriptedServer) -> None:
    page = visit(**PHONE)
    until(page, "document.getElementById('running').textContent === '3/32'")
    assert fits(page)
    shoot(page, "phone-welcome")
    server.pieces = LONG.split(" ")
    server.pieces = [piece + " " for piece in server.pieces]
    ask(page, "Tell me " + "y" * 100)
    wait_for_end(page)
    assert fits(page)
    shoot(page, "phone")
    assert page.evaluate("document.querySelector('#scroll').scrollTop > 0")      # it followed the answer
    page.get_by_role("button", name="Settings").tap()
    assert fits(page)
    shoot(page, "phone-settings")
    small = page.evaluate("""[...document.querySelectorAll('.icon, .round')].filter(e => e.offsetParent)
        .filter(e => e.getBoundingClientRect().width < 36).length""")
    assert small == 0


RIVERS = """The two longest rivers:

1. **Nile**, 6650 km
2. **Amazon**, 6400 km

In Python, with a dictionary of lengths:

```python
rivers = sorted(lengths, key=lengths.get)
print(rivers[-2:])
```

`sorted` leaves the dictionary as it is.
"""


def test_pictures_of_a_desktop(visit: Callable[..., Any], server: ScriptedServer) -> None:
    for scheme in ("light", "dark"):
        page = visit(color_scheme=scheme)
        until(page, "document.getElementById('running').textContent === '3/32'")
        shoot(page, f"desktop-{scheme}-welcome")
        server.pieces = RIVERS.splitlines(keepends=True)
        ask(page, "Name the two longest rivers, and how I would find them in Python.")
        wait_for_end(page)
        page.wait_for_timeout(2500 if SHOTS else 0)
        shoot(page, f"desktop-{scheme}")
        assert fits(page)


def test_the_page_holds_all_it_needs() -> None:
    page = ChatPage()
    html = page.body.decode()
    markup = re.sub(r"<script.*</script>", "", html, flags=re.DOTALL)
    assert [link[:5] for link in re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]*)""", markup)] == ["data:"]
    assert "/*{{" not in html
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", html)
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    folder = Path(__file__).parents[2] / "jaxengine" / "server" / "page"
    assert {p.name for p in folder.glob("*.js")} == set(SCRIPTS)
    assert len(page.body) < 64 * 1024
