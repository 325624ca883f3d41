"""A rough crowd: many clients at once who stream, leave, send nonsense, ask for forms, and fill the pool.

Everything that a client did not provoke counts as a fault: another status than expected, a stream without its end,
text that is not the known one, a form that was not kept, a /health that is not ready, blocks or requests left over.

  python tests/server/load.py http://127.0.0.1:8000 MODEL --streams 64 --seconds 300 --pid PID
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from load_http import Client, Reply

C, H = "/v1/completions", "/v1/chat/completions"
WORDS = ["the", "cat", "in", "a", "hat", "and", "ten", "more", "of", "them", "sat", "while", "it", "rained"]
PLACE = {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PLACE}}
BAD: list[tuple[str, Any, int]] = [
    (C, b"{", 400), (C, b"\xff\xfe", 400), (C, [], 400), (C, {}, 400), (C, {"prompt": ""}, 400),
    (C, {"prompt": "a", "temperature": -1}, 400), (C, {"prompt": [10**9]}, 400), (C, {"prompt": "a", "n": 0}, 400),
    (C, {"prompt": "a", "max_tokens": 10**9}, 400), (C, {"prompt": "a", "guided_json": {}}, 400),
    (C, {"prompt": "a", "model": "another"}, 404), (C, {"prompt": "a" * 10**5}, 400), (H, {"messages": []}, 400),
    (H, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400), ("/v1/nothing", {}, 404),
    (H, {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema"}}, 400),
    (C, {"prompt": "a", "structured_outputs": {"regex": "("}}, 400), (C, b"[" * 10**5, 400),
]


@dataclass
class Seen:
    """What happened: actions done, what came of them, and what should not have come."""

    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    tokens: int = 0
    health_checks: int = 0
    slowest_health: float = 0.0
    resident: list[float] = field(default_factory=list)      # MiB, once a second
    preemptions: float = 0.0
    left_over: dict[str, Any] = field(default_factory=dict)


class Crowd:
    """window: tokens of prompt and output together that the model takes."""

    def __init__(self, client: Client, model: str, window: int, seed: int = 0) -> None:
        self.client, self.model, self.window = client, model, window
        self.seen, self.random = Seen(), random.Random(seed)
        self.known: dict[str, str] = {}
        self.actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self.stream), (3, self.whole), (3, self.several), (4, self.fill), (4, self.leave),
            (2, self.leave_early), (1, self.half_a_request), (3, self.nonsense), (2, self.too_late),
            (2, self.form), (1, self.tool), (3, self.repeat), (1, self.score),
        ]

    async def run(self, streams: int, seconds: float, pid: int | None = None) -> Seen:
        for prompt in WORDS[:6]:
            self.known[prompt] = (await self._post(C, self._greedy(prompt))).json["choices"][0]["text"]
        end = time.monotonic() + seconds
        watching = asyncio.ensure_future(self._watch(pid))
        await asyncio.gather(*(self._one(end) for _ in range(streams)))
        watching.cancel()
        await self._look_after()
        return self.seen

    async def _one(self, end: float) -> None:
        weights, actions = zip(*self.actions, strict=True)
        while time.monotonic() < end:
            action = self.random.choices(actions, weights)[0]
            name = action.__name__
            try:
                await asyncio.wait_for(action(), 120)
            except (AssertionError, OSError, ValueError, KeyError, IndexError, TimeoutError) as error:
                self.seen.faults.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            self.seen.done[name] += 1

    # What clients do.

    async def stream(self) -> None:
        n = self.random.choice([1, 1, 1, 2])
        reply = await self._post(C, self._ask(n=n) | {"stream": True, "stream_options": {"include_usage": True}})
        self._check_stream(reply, n)

    async def whole(self) -> None:
        reply = await self._post(H, {
            "messages": [{"role": "user", "content": self._text(20)}], "max_tokens": self.random.randrange(1, 40),
            "logprobs": True, "top_logprobs": 3,
        })
        assert reply.status == 200, reply.body[:200]
        choice = reply.json["choices"][0]
        assert len(choice["logprobs"]["content"]) == reply.json["usage"]["completion_tokens"], choice
        self.seen.tokens += reply.json["usage"]["completion_tokens"]

    async def several(self) -> None:
        prompts, n = [self._text(12) for _ in range(self.random.randrange(1, 4))], self.random.randrange(1, 5)
        reply = await self._post(C, self._ask(n=n) | {"prompt": prompts})
        assert reply.status == 200, reply.body[:200]
        assert [choice["index"] for choice in reply.json["choices"]] == list(range(n * len(prompts)))
        self.seen.tokens += reply.json["usage"]["completion_tokens"]

    async def fill(self) -> None:
        """As long as the model takes: enough of these at once do not fit into the pool, and preempt each other."""
        length = self.random.randrange(self.window // 4, self.window - 2)
        prompts = [self._ids(length) for _ in range(self.random.choice([1, 1, 8]))]
        reply = await self._post(C, {
            "prompt": prompts, "max_tokens": self.window - length, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        })
        self._check_stream(reply, len(prompts))

    async def leave(self) -> None:
        """In the midst of a stream."""
        body = self._ask(n=self.random.choice([1, 4])) | {"max_tokens": self.window // 2, "stream": True}
        reply = await self._post(C, body, leave_after=self.random.randrange(1, 12))
        assert reply.status == 200, reply.body[:200]

    async def leave_early(self) -> None:
        """Before anything came: while tokenising, queueing or in the prefill."""
        body = self._ask() | {"max_tokens": self.window // 2, "stream": self.random.random() < 0.5}
        await self._post(C, body, leave_within=self.random.random() * 0.1)

    async def half_a_request(self) -> None:
        await self.client.send_half(C, self._ask())

    async def nonsense(self) -> None:
        path, body, status = self.random.choice(BAD)
        reply = await self._post(path, body)
        assert reply.status == status, (path, str(body)[:80], reply.status, reply.body[:200])
        assert set(reply.json) == {"error"}

    async def too_late(self) -> None:
        """A deadline that may pass before the first token, in a stream, or not at all."""
        stream = self.random.random() < 0.5
        body = self._ask() | {"max_tokens": self.window // 2, "ignore_eos": True, "stream": stream}
        reply = await self._post(C, body, headers={"X-Request-Timeout": f"{self.random.uniform(0.01, 1):.3f}"})
        if reply.status == 408:
            assert reply.json["error"]["code"] == "deadline_exceeded"
        elif stream and "error" in reply.events[-1]:
            assert reply.events[-1]["error"]["code"] == "deadline_exceeded", reply.events[-1]
        else:
            assert reply.status == 200, reply.body[:200]

    async def form(self) -> None:
        message = [{"role": "user", "content": self._text(8)}]
        schema = {"name": "place", "schema": PLACE}
        reply = await self._post(H, {
            "messages": message, "response_format": {"type": "json_schema", "json_schema": schema},
        })
        assert reply.status == 200, reply.body[:200]
        assert set(json.loads(reply.json["choices"][0]["message"]["content"])) == {"city", "unit"}
        choices = self.random.sample(WORDS, 3)
        reply = await self._post(C, {"prompt": self._text(4), "structured_outputs": {"choice": choices}})
        assert reply.json["choices"][0]["text"] in choices

    async def tool(self) -> None:
        reply = await self._post(H, {
            "messages": [{"role": "user", "content": self._text(8)}], "tools": [TOOL], "tool_choice": "required",
            "parallel_tool_calls": False,
        })
        assert reply.status == 200, reply.body[:200]
        (call,) = reply.json["choices"][0]["message"]["tool_calls"]
        assert set(json.loads(call["function"]["arguments"])) == {"city", "unit"}

    async def repeat(self) -> None:
        """A greedy answer is the same in any company."""
        prompt = self.random.choice(list(self.known))
        reply = await self._post(C, self._greedy(prompt))
        assert reply.status == 200, reply.body[:200]
        text = reply.json["choices"][0]["text"]
        assert text == self.known[prompt], f"{prompt!r}: {text!r}, not {self.known[prompt]!r}"

    async def score(self) -> None:
        prompts = [self._ids(20) for _ in range(4)]
        reply = await self._post(C, {"prompt": prompts, "max_tokens": 1, "echo": True, "logprobs": 1})
        assert reply.status == 200, reply.body[:200]
        assert [len(choice["logprobs"]["tokens"]) for choice in reply.json["choices"]] == [21] * 4

    # Their words, and what they look at.

    def _text(self, at_most: int) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randrange(1, at_most)))

    def _ids(self, length: int) -> list[int]:
        return [self.random.randrange(3, 250) for _ in range(length)]

    def _ask(self, n: int = 1) -> dict[str, Any]:
        return {"prompt": self._text(20), "max_tokens": self.random.randrange(1, 60), "n": n,
                "temperature": self.random.choice([0, 0.7, 1.5]), "seed": self.random.randrange(100),
                "top_p": self.random.choice([1, 0.9]), "top_k": self.random.choice([-1, 5])}

    def _greedy(self, prompt: str) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": 12, "temperature": 0}

    async def _post(self, path: str, body: Any, **how: Any) -> Reply:
        if isinstance(body, dict):
            body = {"model": self.model} | body
        return await self.client.post(path, body, **how)

    def _check_stream(self, reply: Reply, n: int) -> None:
        assert reply.status == 200, reply.body[:200]
        assert reply.events, "no event"
        assert reply.events[-1] == "[DONE]", str(reply.events[-1])[:300]
        chunks = reply.events[:-1]
        ends = Counter(c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"])
        assert ends == Counter(range(n)), ends
        self.seen.tokens += chunks[-1]["usage"]["completion_tokens"]

    async def _watch(self, pid: int | None) -> None:
        while True:
            start = time.monotonic()
            try:
                reply = await self.client.get("/health")
                if reply.status != 200:
                    self.seen.faults.append(f"/health: {reply.status} {reply.body[:100]!r}")
            except OSError as error:
                self.seen.faults.append(f"/health: {error}")
            self.seen.health_checks += 1
            self.seen.slowest_health = max(self.seen.slowest_health, time.monotonic() - start)
            if pid is not None:
                self.seen.resident.append(resident_mib(pid))
            await asyncio.sleep(1)

    async def _look_after(self) -> None:
        """Everything that ran or waited is gone within ten seconds."""
        for _ in range(100):
            stats = (await self.client.get("/stats")).json
            left = {name: stats[name] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage")}
            if not any(left.values()):
                break
            await asyncio.sleep(0.1)
        self.seen.left_over = left
        if any(left.values()):
            self.seen.faults.append(f"left over: {left}")
        for line in (await self.client.get("/metrics")).body.decode().splitlines():
            if line.startswith("jaxengine_num_preemptions_total"):
                self.seen.preemptions += float(line.split()[-1])


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/{pid}/status has no VmRSS")


def growth(resident: list[float]) -> float:
    """MiB between the second and the last fifth: the first fifth is warm-up."""
    fifth = len(resident) // 5
    return median(resident[-fifth:]) - median(resident[fifth:2 * fifth]) if fifth else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--window", type=int, default=256, help="the model's context in tokens")
    parser.add_argument("--pid", type=int, help="the server's process, whose memory is watched")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    crowd = Crowd(Client(args.url), args.model, args.window, args.seed)
    seen = asyncio.run(crowd.run(args.streams, args.seconds, args.pid))
    told = {name: value for name, value in vars(seen).items() if name != "resident"}
    told["faults"] = {"number": len(seen.faults), "first": seen.faults[:20]}
    told["resident_mib"] = [round(value) for value in seen.resident[::max(1, len(seen.resident) // 20)]]
    told["growth_mib"] = round(growth(seen.resident), 1)
    print(json.dumps(told, indent=1))
    sys.exit(bool(seen.faults))


if __name__ == "__main__":
    main()
