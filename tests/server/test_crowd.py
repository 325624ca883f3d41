"""The crowd of load.py, in a short form."""

import asyncio
from collections.abc import Callable

import pytest
from load import Crowd, growth
from load_http import Client
from tiny_model import WINDOW
from wire import Wire

from jaxengine.server.context import STUCK, ServerContext
from jaxengine.server.model_service import ModelService


@pytest.mark.slow
@pytest.mark.usefixtures("unharmed")
def test_a_crowd_leaves_nothing_behind(wire: Wire, service: ModelService, until_idle: Callable[[], bool]) -> None:
    free = service.engine.engine.blocks.num_free
    seen = asyncio.run(Crowd(Client(wire.url), "tiny", WINDOW).run(streams=24, seconds=12))
    assert seen.faults == []
    assert min(seen.done.values()) > 0, seen.done
    assert len(seen.done) == 13
    assert seen.tokens > 1000
    assert seen.preemptions > 0
    assert until_idle()
    assert service.engine.engine.blocks.num_free == free
    assert not wire.ctx.open_streams
    assert wire.ctx.text.num_pending == 0


def test_a_crowd_tells_what_is_wrong(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(Client(wire.url), "tiny", WINDOW)
    crowd.known["Hello"] = "what it does not say"
    with pytest.raises(AssertionError, match="not 'what it does not say'"):
        asyncio.run(crowd.repeat())
    monkeypatch.setattr("load.BAD", [("/v1/completions", {"prompt": "a", "max_tokens": 1}, 400)])
    monkeypatch.setattr(ServerContext, "status", STUCK)
    crowd.actions = [(1, crowd.nonsense)]
    seen = asyncio.run(crowd.run(streams=1, seconds=0.1))
    assert {fault.split(":")[0] for fault in seen.faults} == {"nonsense", "/health"}


def test_growth_leaves_out_the_warm_up() -> None:
    assert growth([0.0, *[5.0] * 3, 9.0]) == 4
    assert growth([1.0] * 3) == 0
