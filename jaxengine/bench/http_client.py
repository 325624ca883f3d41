"""A load for OpenAI-compatible servers, on bare sockets so that it takes little of the cores it shares with them.

Sends the requests of mixed(n) together to /v1/completions as streams, reads them to their end, and prints one JSON
object: wall and CPU seconds, time to the first token of each, time between chunks of text, output tokens.

  python -m jaxengine.bench.http_client http://127.0.0.1:8000 MODEL 32 49152
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

from jaxengine.bench.workload import Prompt, mixed


@dataclass
class Load:
    """What the client saw. Times in seconds."""

    wall_s: float = 0.0
    cpu_s: float = 0.0                                        # of the client itself
    output_tokens: int = 0
    first_s: list[float] = field(default_factory=list)        # per request, from its sending
    between_s: list[float] = field(default_factory=list)      # between two chunks of one stream


async def run_load(url: str, model: str, prompts: list[Prompt]) -> Load:
    """Raises RuntimeError with the server's answer where a request is not answered with a stream."""
    load = Load()
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(_stream(url, model, prompt, load) for prompt in prompts))
    load.wall_s, load.cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return load


async def _stream(url: str, model: str, prompt: Prompt, load: Load) -> None:
    place = urlsplit(url)
    body = json.dumps({
        "model": model, "prompt": prompt.token_ids, "max_tokens": prompt.output_len, "min_tokens": prompt.output_len,
        "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(place.hostname, place.port or 80)
    start = last = time.perf_counter()
    writer.write(head.encode() + body)
    status = await reader.readline()
    if b" 200 " not in status:
        answer = await reader.read()
        raise RuntimeError(f"{url} answered {status.decode().strip()}: {answer[-500:].decode(errors='replace')}")
    first = True
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        if b'"usage":{' in line or b'"usage": {' in line:      # once, in the last chunk
            load.output_tokens += json.loads(line[6:])["usage"]["completion_tokens"]
            continue
        now = time.perf_counter()
        (load.first_s if first else load.between_s).append(now - (start if first else last))
        first, last = False, now
    writer.close()


def main() -> None:
    url, model, requests, vocab_size = sys.argv[1:]
    prompts = mixed(int(requests), int(vocab_size))
    print(json.dumps(asdict(asyncio.run(run_load(url, model, prompts)))))


if __name__ == "__main__":
    main()
