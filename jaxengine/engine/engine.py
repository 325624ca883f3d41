"""The step loop: plan, launch the forward, read the previous step, launch the sampler.

    Request -> Sequence -> StepPlan -> StepBatch -> compiled step -> sampled ids -> text -> RequestOutput

Results are read one step late. While the device runs a forward, the host reads the ids sampled before
it, detokenises them, ends what has ended and prepares the sampler's rows; so a step's masks and
penalties always see every earlier token, and the device never waits for Python.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from concurrent.futures import Future

from jaxengine.config import EngineConfig
from jaxengine.engine.collect import Collector
from jaxengine.engine.launch import Flight, Launcher
from jaxengine.engine.live import Live
from jaxengine.engine.output import OutputKind, RequestState, SequenceOutput
from jaxengine.engine.request_checks import RequestChecks
from jaxengine.engine.runner import Runner
from jaxengine.engine.stats import EngineObserver, StepStats
from jaxengine.scheduler import BlockManager, BlockPools, Scheduler
from jaxengine.structured import CompiledGrammar, GrammarCompiler
from jaxengine.tokenizer import Tokenizer
from jaxengine.types import Request, RequestOutput, SamplingParams, StepPlan


class Engine:
    """Batches requests onto one model. Not thread-safe: one thread calls it (see AsyncEngine).

    `last_plan`, `stats`, `scheduler`, `live` and `runner` are open to look at.
    """

    def __init__(
        self, runner: Runner, config: EngineConfig, max_model_len: int,
        tokenizer: Tokenizer | None = None, eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.runner, self.config, self.tokenizer = runner, config, tokenizer
        self.max_model_len, self.eos_token_ids = max_model_len, eos_token_ids
        cache, limits, vocab_size = config.cache, config.scheduler, runner.cfg.vocab_size
        pools = [
            BlockManager(runner.memory.num_blocks, cache.block_size, cache.enable_prefix_caching)
            for _ in range(runner.num_shards)
        ]
        self.scheduler = Scheduler(limits, pools, max_model_len)
        self.stats: deque[StepStats] = deque(maxlen=4096)
        self.last_plan: StepPlan | None = None
        self.observer: EngineObserver | None = None
        self.compiler: GrammarCompiler | None = None
        if tokenizer is not None:
            self.compiler = GrammarCompiler(tokenizer, eos_token_ids, vocab_size)
        self.live = Live()
        self._checks = RequestChecks(limits, max_model_len, self.blocks.capacity, vocab_size, tokenizer, eos_token_ids)
        self._launcher = Launcher(runner, limits.max_num_seqs, cache.block_size, self.live)
        self._collector = Collector(self.scheduler, self.live, tokenizer, runner.buckets.score)
        self._flight: Flight | None = None
        self._seeds = random.Random(config.seed)
        self._request_ids = itertools.count()

    @property
    def ledger(self):
        return self.runner.ledger

    @property
    def memory_plan(self):
        return self.runner.memory

    @property
    def blocks(self) -> BlockPools:
        return self.scheduler.pools

    @property
    def requests(self) -> dict[str, RequestState]:
        return self.live.requests

    @property
    def has_unfinished(self) -> bool:
        return bool(self.live.requests) or self._flight is not None

    def add_request(
        self, prompt_token_ids: list[int], params: SamplingParams | None = None, *, request_id: str | None = None,
        prompt: str | None = None, priority: int = 0, cache_salt: str | None = None,
        output_kind: OutputKind = "cumulative", grammar: CompiledGrammar | None = None,
        arrival_time: float | None = None,
    ) -> str:
        """Queues a request and returns its id. Raises ValueError for what can never be served.

        grammar: what `compile_grammar` made of params.structured_outputs; without it, this call compiles.
        arrival_time: when it came in, on time.monotonic's clock (default: now); its latencies count from there.
        """
        params = params or SamplingParams()
        request_id = request_id if request_id is not None else f"req-{next(self._request_ids)}"
        if request_id in self.live.requests:
            raise ValueError(f"request_id={request_id!r} is already running")
        request = Request(request_id, prompt_token_ids, params, prompt, priority, cache_salt)
        if arrival_time is not None:
            request.arrival_time = arrival_time
        bad_words = self.check_request(request)
        request.prompt_token_ids = [int(t) for t in prompt_token_ids]
        if params.seed is None:
            request.params = params = params.replace(seed=self._seeds.getrandbits(63))
        if grammar is None and (compiling := self.compile_grammar(params)) is not None:
            grammar = compiling.result()
        outputs = [SequenceOutput(s, self.tokenizer, self.eos_token_ids) for s in self.scheduler.add(request)]
        self.live.admit(RequestState(request, outputs, output_kind), grammar)
        for out in outputs:
            self._launcher.admit(out.seq, self._checks.stop_ids(params), bad_words)
        return request_id

    def compile_grammar(self, params: SamplingParams) -> Future[CompiledGrammar] | None:
        """Starts to compile the request's structured_outputs on another thread; None where it has none.

        The future raises ValueError for a grammar that is refused. Any thread may ask.
        """
        if params.structured_outputs is None:
            return None
        if self.compiler is None:
            raise ValueError("structured_outputs needs a tokenizer, and this engine has none")
        return self.compiler.submit(params.structured_outputs)

    def check_request(self, request: Request) -> list[list[int]]:
        """Raises ValueError for a request that can never be served; returns its bad words as token ids.

        Any thread may ask.
        """
        return self._checks.check(request)

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request at once and frees its blocks; returns its last output, None where it is not running."""
        state = self.live.requests.get(request_id)
        if state is None:
            return None
        self.scheduler.abort(request_id)
        return self._close(state)

    def step(self) -> list[RequestOutput]:
        """Launches the next step and returns what the previous one produced."""
        start = time.perf_counter()
        plan = self.scheduler.schedule()
        flight = None if plan is None else self._launcher.forward(plan, start)
        outputs = self._read(self._flight, flight)
        if flight is not None:
            self._launcher.sampler(flight)
            self.stats.append(flight.stats)
        self._flight, self.last_plan = flight, plan
        return outputs

    def _read(self, flight: Flight | None, following: Flight | None) -> list[RequestOutput]:
        """The outputs of a flight, whose host time counts for the one that follows."""
        if flight is None:
            return []
        start = time.perf_counter()
        touched, read = self._collector.collect(flight)
        outputs = []
        for state in touched:
            if state.finished:
                outputs.append(self._close(state))
            elif state.kind != "final_only":
                outputs.append(state.output())
        if self.observer is not None:
            self.observer.step_read(flight.stats, read)
        if following is not None:
            following.stats.wait_s = read.waited - start
            following.stats.output_s = time.perf_counter() - read.waited
        return outputs

    def _close(self, state: RequestState) -> RequestOutput:
        state.metrics.finished_time = time.monotonic()
        state.metrics.first_scheduled_time = state.outputs[0].seq.first_scheduled_time
        output = state.output()
        self.live.remove(state)
        for out in state.outputs:
            self._launcher.release(out.seq)
        if self.observer is not None:
            self.observer.request_ended(state)
        return output
