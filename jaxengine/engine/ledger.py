"""The compile ledger: every executable is listed before it is compiled, then with what it cost.

A bucket that is not ready is compiled in the background while a larger ready one serves; only when no
ready one fits does a step wait. So the first answer needs three executables, not all of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class Key:
    """Names an executable: its kind and its bucket (sequences, tokens or rows; 0 where it has just one shape)."""

    kind: str
    bucket: int = 0

    def __str__(self) -> str:
        return f"{self.kind}[{self.bucket}]" if self.bucket else self.kind


@dataclass
class Entry:
    """One line of the ledger. Sizes in bytes, time in seconds; figures are XLA's own and None until compiled."""

    key: Key
    shapes: str
    lower: Callable[[], Any] = field(repr=False)
    compiled: Any = field(default=None, repr=False)
    state: str = "planned"                   # planned, compiling, ready, failed
    seconds: float | None = None
    flops: float | None = None
    bytes_accessed: float | None = None
    argument_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    code_bytes: int | None = None
    calls: int = 0


class CompileLedger:
    """Holds the executables of one engine. Thread-safe: compilation may run beside the engine's thread."""

    def __init__(self, workers: int = 1, forbid_after_warmup: bool = False) -> None:
        self.entries: dict[Key, Entry] = {}
        self.compiled_after_warmup = 0
        self.on_wait: Callable[[Key], None] | None = None      # called before a step waits for a compilation
        self._forbid = forbid_after_warmup
        self._warm = False
        self._futures: dict[Key, Future] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="compile")

    def plan(self, key: Key, shapes: str, lower: Callable[[], Any]) -> None:
        """Lists an executable. `lower()` returns what `jax.jit(f).lower(...)` returns; nothing is compiled yet."""
        self.entries[key] = Entry(key, shapes, lower)

    def start(self, key: Key) -> Future:
        """Compiles in the background; asking twice compiles once."""
        with self._lock:
            if key not in self._futures:
                if self._warm:
                    self._after_warmup(key)
                self._futures[key] = self._pool.submit(self._compile, self.entries[key])
            return self._futures[key]

    def get(self, key: Key) -> Any:
        """The executable, compiled now if it has to be."""
        entry = self.entries[key]
        entry.calls += 1
        if entry.compiled is None:
            if self.on_wait is not None:
                self.on_wait(key)
            return self.start(key).result()
        return entry.compiled

    @property
    def num_pending(self) -> int:
        """Executables that were asked for and are not ready yet."""
        with self._lock:
            return sum(not future.done() for future in self._futures.values())

    def is_ready(self, key: Key) -> bool:
        return self.entries[key].compiled is not None

    def pick(self, kind: str, buckets: Iterable[int], needed: int) -> int:
        """The bucket to run `needed` items in: the smallest that fits, or a larger ready one while that compiles."""
        fitting = [b for b in buckets if b >= needed]
        assert fitting, f"no {kind} bucket holds {needed}"
        best = fitting[0]
        if self.is_ready(Key(kind, best)):
            return best
        ready = next((b for b in fitting[1:] if self.is_ready(Key(kind, b))), None)
        if ready is None:
            return best
        self.start(Key(kind, best))
        return ready

    def finish_warmup(self, wait: bool) -> None:
        """Compiles everything that is listed; with `wait`, returns when all is ready and later ones are errors."""
        futures = [self.start(key) for key in self.entries]
        if wait:
            for future in futures:
                future.result()
            self._warm = True

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _after_warmup(self, key: Key) -> None:
        self.compiled_after_warmup += 1
        message = f"{key} is compiled after warm-up: {self.entries[key].shapes}"
        if self._forbid:
            raise RuntimeError(message)
        log.warning(message)

    def _compile(self, entry: Entry) -> Any:
        entry.state = "compiling"
        start = time.perf_counter()
        try:
            compiled = entry.lower().compile()
        except BaseException:
            entry.state = "failed"
            raise
        entry.seconds = time.perf_counter() - start
        _read_figures(entry, compiled)
        entry.compiled, entry.state = compiled, "ready"
        log.info("compiled %s in %.2f s: %s", entry.key, entry.seconds, entry.shapes)
        return compiled

    def rows(self) -> list[dict[str, Any]]:
        """The ledger as plain dicts, for JSON."""
        names = ("state", "shapes", "seconds", "flops", "bytes_accessed", "argument_bytes", "alias_bytes",
                 "temp_bytes", "code_bytes", "calls")
        return [{"name": str(e.key)} | {n: getattr(e, n) for n in names} for e in self.entries.values()]

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The ledger as text: seconds to compile, GFLOP and MB by XLA's reckoning."""
        heads = ("executable", "state", "seconds", "GFLOP", "temp MB", "alias MB", "calls", "shapes")
        rows = [
            (str(e.key), e.state, _show(e.seconds), _show(e.flops, 1e9), _show(e.temp_bytes, 1e6, 1),
             _show(e.alias_bytes, 1e6, 1), str(e.calls), e.shapes)
            for e in self.entries.values()
        ]
        return "\n".join("{:<16}{:<10}{:>8}{:>9}{:>9}{:>9}{:>7}  {}".format(*row) for row in (heads, *rows))


def _show(value: float | None, scale: float = 1.0, digits: int = 2) -> str:
    return "-" if value is None else f"{value / scale:.{digits}f}"


def _read_figures(entry: Entry, compiled: Any) -> None:
    cost = compiled.cost_analysis() or {}
    entry.flops, entry.bytes_accessed = cost.get("flops"), cost.get("bytes accessed")
    memory = compiled.memory_analysis()
    if memory is not None:      # not every platform tells
        entry.argument_bytes = memory.argument_size_in_bytes
        entry.temp_bytes = memory.temp_size_in_bytes
        entry.alias_bytes = memory.alias_size_in_bytes
        entry.code_bytes = memory.generated_code_size_in_bytes
