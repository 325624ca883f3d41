"""The compile ledger on functions that compile in no time."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxengine.engine.ledger import CompileLedger, Key


def ledger_of(*sizes: int, **options: bool) -> CompileLedger:
    ledger = CompileLedger(**options)  # type: ignore[arg-type]
    for size in sizes:
        ledger.plan(Key("double", size), f"[{size}]", lambda n=size: jax.jit(lambda x: 2 * x).lower(jnp.zeros(n)))
    return ledger


def test_listed_before_it_is_compiled() -> None:
    ledger = ledger_of(2, 4)
    assert [r["state"] for r in ledger.rows()] == ["planned", "planned"]
    assert ledger.get(Key("double", 4))(jnp.ones(4)).tolist() == [2.0] * 4
    by_name = {r["name"]: r for r in ledger.rows()}
    assert by_name["double[2]"]["state"] == "planned"
    assert by_name["double[4]"]["seconds"] > 0
    assert by_name["double[4]"]["calls"] == 1
    assert "double[4]" in ledger.table()


def test_a_larger_ready_bucket_serves_meanwhile() -> None:
    ledger = ledger_of(2, 4, 8)
    assert ledger.pick("double", (2, 4, 8), 2) == 2      # none is ready: the one that fits
    ledger.get(Key("double", 8))
    assert ledger.pick("double", (2, 4, 8), 3) == 8
    ledger.start(Key("double", 4)).result()              # asked for by the line above
    assert ledger.pick("double", (2, 4, 8), 3) == 4


def test_compiling_after_warmup() -> None:
    ledger = ledger_of(2, forbid_after_warmup=True)
    ledger.finish_warmup(wait=True)
    ledger.plan(Key("late", 1), "[1]", lambda: jax.jit(jnp.sin).lower(1.0))
    with pytest.raises(RuntimeError, match=r"late\[1\]"):
        ledger.get(Key("late", 1))
    assert ledger.compiled_after_warmup == 1


def test_a_failing_compilation_is_reported_again() -> None:
    ledger = CompileLedger()

    def broken() -> None:
        raise ValueError("bad shapes")

    ledger.plan(Key("broken"), "", broken)
    for _ in range(2):
        with pytest.raises(ValueError, match="bad shapes"):
            ledger.get(Key("broken"))
    assert ledger.rows()[0]["state"] == "failed"


def test_what_is_asked_for_is_pending_until_it_is_ready() -> None:
    ledger, gate = CompileLedger(), threading.Event()

    def slow() -> Any:
        assert gate.wait(30)
        return jax.jit(jnp.sin).lower(1.0)

    for at in range(3):
        ledger.plan(Key("slow", at), "", slow)
    assert ledger.num_pending == 0
    futures = [ledger.start(Key("slow", at)) for at in range(2)]
    assert ledger.num_pending == 2
    gate.set()
    for future in futures:
        future.result()
    assert ledger.num_pending == 0
