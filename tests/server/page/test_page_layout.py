"""Light and dark, phones and desktops; with PAGE_SCREENSHOTS=FOLDER, pictures of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actions import PHONE, SHOTS, ask, fits, shoot, until, wait_for_end
from scripted_server import ScriptedServer


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
