"""Tokenising, templates and large JSON, off the event loop and off the engine's thread.

Tokenisers release the GIL; jinja and JSON do not, but let the event loop in every few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class TextWork:
    """A few threads. Work whose request is cancelled before its turn never runs."""

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="text")
        self.num_pending = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self.num_pending -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
