"""Many coroutines on one engine thread."""

import asyncio
from collections.abc import Iterator

import pytest

from jaxengine import LLM, AsyncEngine, SamplingParams
from jaxengine.engine.async_engine import EngineDeadError, OutputStream
from jaxengine.engine.engine import Engine
from jaxengine.types import RequestOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def engine(smol: LLM) -> Iterator[AsyncEngine]:
    first = smol.engine
    serving = AsyncEngine(Engine(first.runner, first.config, first.max_model_len, first.tokenizer))
    yield serving
    serving.stop()
    assert serving.engine.blocks.usage == 0


async def collect(engine: AsyncEngine, ids: list[int], params: SamplingParams = GREEDY) -> list[RequestOutput]:
    return [output async for output in engine.generate(ids, params)]


def test_many_streams(smol: LLM, engine: AsyncEngine) -> None:
    prompts = [[1000 + i, 2000 + i, 3000] for i in range(10)]
    expected = [o.outputs[0].token_ids for o in smol.generate(prompts, GREEDY, use_tqdm=False)]

    async def main() -> list[list[RequestOutput]]:
        return await asyncio.gather(*(collect(engine, p) for p in prompts))

    for outputs, ids in zip(asyncio.run(main()), expected, strict=True):
        assert [t for o in outputs for t in o.outputs[0].token_ids] == ids      # deltas
        assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]


def test_cancelling_frees_the_blocks(engine: AsyncEngine) -> None:
    async def main() -> None:
        task = asyncio.create_task(collect(engine, [5, 6, 7], GREEDY.replace(max_tokens=900)))
        while not engine.engine.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while engine.engine.requests:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_leaving_the_loop_aborts(engine: AsyncEngine) -> None:
    async def main() -> None:
        stream = engine.generate([5, 6, 7], GREEDY.replace(max_tokens=900))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        while engine.engine.requests:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_bad_request_hurts_nobody_else(engine: AsyncEngine) -> None:
    async def main() -> None:
        good = asyncio.create_task(collect(engine, [5, 6, 7]))
        with pytest.raises(ValueError, match="prompt_token_ids"):
            await collect(engine, [-1])
        assert (await good)[-1].finished

    asyncio.run(main())
    assert engine.is_healthy


def test_a_failing_step_fails_everyone_and_hangs_nobody(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("the device caught fire")

    async def main() -> None:
        first = asyncio.create_task(collect(engine, [5, 6, 7], GREEDY.replace(max_tokens=900)))
        while not engine.engine.requests:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(engine.engine, "step", fail)
        with pytest.raises(EngineDeadError, match="caught fire"):
            await first
        assert not engine.is_healthy
        with pytest.raises(EngineDeadError):
            await collect(engine, [5, 6, 7])

    asyncio.run(asyncio.wait_for(main(), 60))
    monkeypatch.undo()
    for request_id in list(engine.engine.requests):
        engine.engine.abort(request_id)


def test_what_came_before_an_error_is_told_first(engine: AsyncEngine) -> None:
    async def main() -> None:
        stream, output = OutputStream(engine, ["a"], None), RequestOutput("a", None, [], [], finished=False)
        stream.put((0, output))
        stream.put(ValueError("too late"))
        assert await anext(stream) == [(0, output)]
        with pytest.raises(ValueError, match="too late"):
            await anext(stream)

    asyncio.run(main())
