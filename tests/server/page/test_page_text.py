"""What model output looks like, and what it must not be able to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actions import answer, ask, wait_for_end
from scripted_server import ScriptedServer

from jaxengine.server.page import SCRIPTS, ChatPage

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


def test_the_page_holds_all_it_needs() -> None:
    page = ChatPage()
    html = page.body.decode()
    markup = re.sub(r"<script.*</script>", "", html, flags=re.DOTALL)
    assert [link[:5] for link in re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]*)""", markup)] == ["data:"]
    assert "/*{{" not in html
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", html)
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    folder = Path(__file__).parents[3] / "jaxengine" / "server" / "page"
    assert {p.name for p in folder.glob("*.js")} == set(SCRIPTS)
    assert len(page.body) < 64 * 1024
