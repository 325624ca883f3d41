"""Through HTTP against the engine alone: throughput, time to the first token, and what the event loop spends.

The same engine runs mixed(n) driven directly, then behind its server with a client in another process that streams
all n. Client and server share the cores, so the client's CPU time, spread over them, is taken off the wall time.
Beside it the engine is replaced by a stand-in whose steps take a fixed time and no core: what an accelerator sees.

  jaxengine bench serve
  jaxengine bench serve --peer-url llama-server=http://127.0.0.1:8081 --peer-url vllm=http://127.0.0.1:8082
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxengine.bench.drive import drive
from jaxengine.bench.http_client import Load
from jaxengine.bench.options import add_model_arguments, add_report_arguments, engine_for, repeats, settings
from jaxengine.bench.report import Report, finish
from jaxengine.bench.stand_in import stand_in_engine
from jaxengine.bench.timing import alternate, median, percentile
from jaxengine.bench.workload import mixed
from jaxengine.checkpoint import open_checkpoint
from jaxengine.config import EngineConfig
from jaxengine.engine.engine import Engine
from jaxengine.engine.load import LoadedModel
from jaxengine.server.context import ServerContext
from jaxengine.server.lifecycle import Server
from jaxengine.server.model_service import ModelService
from jaxengine.server.settings import ServerSettings
from jaxengine.tokenizer import load_tokenizer

NAME = "bench"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_report_arguments(parser, repeats=3)
    parser.add_argument("--requests", type=int, default=32, metavar="N", help="streams at once [32]")
    parser.add_argument("--step-ms", type=float, default=20.0, metavar="MS", help="of the stand-in's steps [20]")
    parser.add_argument(
        "--peer-url", action="append", default=[], metavar="NAME=URL",
        help="another server of the same model, already running, under the model name in NAME@MODEL=URL or 'bench'",
    )
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return finish(measure(args), args)


@dataclass
class Served:
    """A load, and the CPU seconds of the server's event loop during it."""

    load: Load
    loop_s: float

    @property
    def server_s(self) -> float:
        """Wall seconds without the client's share of the cores."""
        return self.load.wall_s - self.load.cpu_s / (os.cpu_count() or 1)


def measure(args: argparse.Namespace) -> Report:
    n = args.requests
    options = {"max_num_seqs": n, "max_model_len": 256, "enable_prefix_caching": False}
    engine = engine_for(args, **options)
    if engine.tokenizer is None:
        raise ValueError(f"--model {args.model} has no tokenizer, and a server needs one")
    stand_in = _stand_in(args.model, options, args.step_ms / 1e3)
    with _server() as running:
        variants: dict[str, Callable[[], Any]] = {}
        for name, under in (("engine", engine), ("stand-in", stand_in)):
            variants[name] = partial(drive, under, mixed(n, under.runner.cfg.vocab_size))
            variants[f"{name}, HTTP"] = partial(served, under, args.model, n, *running)
        peers = dict(_peer(text) for text in args.peer_url)
        for name, (url, model) in peers.items():
            variants[name] = partial(client, url, model, n, engine.runner.cfg.vocab_size)
        results = alternate(variants, repeats(args))
    rows = [row for name in ("engine", "stand-in") for row in _pair(name, results[name], results[f"{name}, HTTP"])]
    rows += [_http_row(name, results[name]) for name in peers]
    facts = settings(engine, args) | {"streams": n, "stand-in's step ms": args.step_ms}
    engine.runner.close()
    return Report("serve", rows, facts)


def _stand_in(model: str, options: dict[str, Any], step_s: float) -> Engine:
    tokenizer = load_tokenizer(open_checkpoint(model, progress=False))
    config = EngineConfig.from_options(**options)
    return stand_in_engine(config, tokenizer.vocab_size, options["max_model_len"], tokenizer, step_s)


@contextmanager
def _server() -> Iterator[tuple[ServerContext, Server, asyncio.AbstractEventLoop]]:
    """A server on a free port, in a thread of this process; it has no model yet."""
    ctx = ServerContext(ServerSettings(port=0), (NAME,))
    server, loops = Server(ctx), []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    def in_thread() -> None:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(serve())

    thread = threading.Thread(target=in_thread, name="server")
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield ctx, server, loops[0]
    finally:
        server.should_exit = True
        thread.join()


def served(
    engine: Engine, model: str, n: int, ctx: ServerContext, server: Server, loop: asyncio.AbstractEventLoop
) -> Served:
    """Runs mixed(n) through HTTP on `engine`, which is free again afterwards."""
    checkpoint = open_checkpoint(model, progress=False)
    service = ctx.service = ModelService.start(LoadedModel(NAME, engine, checkpoint, {}))
    try:
        before = _thread_time(loop)
        load = client(f"http://127.0.0.1:{server.bound_port}", NAME, n, engine.runner.cfg.vocab_size)
        return Served(load, _thread_time(loop) - before)
    finally:
        ctx.service = None
        service.engine.stop()


def _thread_time(loop: asyncio.AbstractEventLoop) -> float:
    async def read() -> float:
        return time.thread_time()

    return asyncio.run_coroutine_threadsafe(read(), loop).result()


def client(url: str, model: str, n: int, vocab_size: int) -> Load:
    """The load's figures from a process of its own. Raises ValueError with what it printed where it fails."""
    command = [sys.executable, "-m", "jaxengine.bench.http_client", url, model, str(n), str(vocab_size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"the client of {url} failed: {done.stderr.strip()[-500:]}")
    return Load(**json.loads(done.stdout))


def _peer(text: str) -> tuple[str, tuple[str, str]]:
    name, equals, url = text.partition("=")
    name, _, model = name.partition("@")
    if not equals or not name or not url:
        raise ValueError(f"--peer-url {text!r} must be NAME=URL or NAME@MODEL=URL")
    return name, (url, model or NAME)


def _pair(name: str, own: list[Any], http: list[Served]) -> list[dict[str, Any]]:
    rate = median([run.rate for run in own])
    row = _http_row(f"{name}, HTTP", [run.load for run in http])
    adjusted = median([run.load.output_tokens / run.server_s for run in http])
    row |= {
        "less client tok/s": adjusted, "over engine": adjusted / rate,
        "loop us/token": 1e6 * median([run.loop_s / run.load.output_tokens for run in http]),
    }
    return [{"what": name, "output tok/s": rate}, row]


def _http_row(name: str, loads: list[Load]) -> dict[str, Any]:
    def ms(percent: float, pick: Callable[[Load], list[float]]) -> float:
        return 1e3 * median([percentile(pick(load), percent) for load in loads])

    return {
        "what": name, "output tok/s": median([load.output_tokens / load.wall_s for load in loads]),
        "TTFT p50 ms": ms(50, lambda load: load.first_s), "TTFT p99 ms": ms(99, lambda load: load.first_s),
        "ITL p50 ms": ms(50, lambda load: load.between_s), "ITL p99 ms": ms(99, lambda load: load.between_s),
        "client us/token": 1e6 * median([load.cpu_s / load.output_tokens for load in loads]),
    }
