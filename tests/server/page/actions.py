"""What a user does on the chat page, and what a test waits for."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
DESKTOP = {"viewport": {"width": 1280, "height": 800}}
SHOTS = os.environ.get("PAGE_SCREENSHOTS")      # a folder: keep pictures of the page there


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
