"""The same greedy requests to this server and to another: texts, log-probabilities, usage and ends have to agree.

Both serve the same folder, which --write makes. vLLM's CPU build as the other one, for example:

  python tests/server/differential.py --write /tmp/ascii
  jaxengine serve /tmp/ascii --served-model-name M --dtype float32 --port 8001
  python -m vllm.entrypoints.openai.api_server --model /tmp/ascii --served-model-name M --dtype float32 \\
      --enforce-eager --max-model-len 256 --port 8002
  python tests/server/differential.py http://127.0.0.1:8001 http://127.0.0.1:8002 M

Left out is what servers decide differently: greedy decoding with n > 1, answers that do not fit the context, where JSON
of a schema may have spaces, and whether a complete form takes one more token, the end's, which this engine saves.
"""

from __future__ import annotations

import json
import random
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "checkpoint"))      # tiny_checkpoints

from ascii_model import VOCAB, write_ascii_model

TOLERANCE = 1e-3
C, H = "/v1/completions", "/v1/chat/completions"
USER = {"role": "user", "content": "Hello"}
TEXTS = ["Hello", "The theory of", "in the inn", "a", "1 2 3 4 5", "\n\n  x", "A lazy dog. " * 9, "(x == y) && !z",
         "<|im_start|>user\nHi<|im_end|>\n", "~"]


def completions() -> list[dict[str, Any]]:
    ids = random.Random(3)
    lengths = [1, 2, 15, 16, 17, 33, 64, 120]
    return [
        *({"prompt": text, "max_tokens": [1, 7, 16, 33][i % 4], "logprobs": [0, 1, 3, 5][i % 4]}
          for i, text in enumerate(TEXTS)),
        *({"prompt": [ids.randrange(VOCAB - 3) for _ in range(n)], "max_tokens": 12, "logprobs": 2} for n in lengths),
        {"prompt": "Hello", "max_tokens": 1, "echo": True, "logprobs": 1},
        {"prompt": [[40, 41, 42, 43], [100, 3, 9]], "max_tokens": 5, "echo": True, "logprobs": 2},
        {"prompt": ["Hello", "a b c", "x"], "max_tokens": 9},
        {"prompt": "Hello", "max_tokens": 60, "stop": ["e"]},
        {"prompt": "Hello", "max_tokens": 60, "stop": ["in", "q", "z", "R"]},
        {"prompt": "a", "max_tokens": 60, "stop": ["e"], "include_stop_str_in_output": True},
        {"prompt": "a", "max_tokens": 60, "ignore_eos": True},
        {"prompt": "b", "max_tokens": 60, "min_tokens": 40},
        {"prompt": "c", "max_tokens": 40, "stop_token_ids": list(range(0, VOCAB, 7))},
        {"prompt": "d", "max_tokens": 30, "logit_bias": {"50": 100}},
        {"prompt": "d", "max_tokens": 30, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"prompt": "the the the", "max_tokens": 30, "repetition_penalty": 1.3},
        {"prompt": "e", "max_tokens": 8, "allowed_token_ids": [40, 41, 42]},
        {"prompt": "a b c d e f g h", "max_tokens": 6, "truncate_prompt_tokens": 5},
        {"prompt": "Hello", "max_tokens": 6, "prompt_logprobs": 2},
        {"prompt": "Hello", "max_tokens": 6, "return_token_ids": True},
        {"prompt": [65] * 250, "max_tokens": 6, "logprobs": 1},
        {"prompt": "", "max_tokens": 4},
        {"prompt": [65] * 256, "max_tokens": 1},
        {"prompt": "s", "max_tokens": 300},
    ]


def chats() -> list[dict[str, Any]]:
    system = {"role": "system", "content": "Be brief."}
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    return [
        {"messages": [USER], "max_tokens": 12},
        {"messages": [USER], "max_tokens": 12, "logprobs": True, "top_logprobs": 3},
        {"messages": [USER], "max_completion_tokens": 5},
        {"messages": [system, USER, {"role": "assistant", "content": "Hi"}, USER], "max_tokens": 9},
        {"messages": [{"role": "user", "content": parts}], "max_tokens": 9},
        {"messages": [USER, {"role": "assistant", "content": "I say"}], "continue_final_message": True,
         "add_generation_prompt": False, "max_tokens": 9},
        {"messages": [USER], "max_tokens": 60, "stop": ["e"]},
        {"messages": [USER], "chat_template_kwargs": {"suffix": "XY"}, "max_tokens": 6},
        {"messages": [USER]},
        {"messages": [USER], "max_tokens": 30, "structured_outputs": {"regex": "(yes|no|[a-z]+ing) [0-9]{3}"}},
        {"messages": [USER], "max_tokens": 3, "structured_outputs": {"choice": ["Paris", "Rome", "Oslo"]}},
    ]


def ask(url: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def text_of(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["message"]["content"]


def streamed(url: str, path: str, body: dict[str, Any]) -> list[str]:
    """The texts of the choices, put together from events."""
    _, raw = ask(url, path, body | {"stream": True})
    texts: dict[int, str] = {}
    for line in raw.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                piece = choice["text"] if "text" in choice else choice["delta"].get("content")
                texts[choice["index"]] = texts.get(choice["index"], "") + (piece or "")
    return [texts[i] for i in sorted(texts)]


class Comparison:
    """worst: the largest difference between two log-probabilities."""

    def __init__(self, ours: str, other: str, model: str) -> None:
        self.ours, self.other, self.model, self.worst, self.compared = ours, other, model, 0.0, 0

    def differences(self, path: str, body: dict[str, Any]) -> list[str]:
        body = {"model": self.model, "temperature": 0} | body
        (status, mine), (peer_status, theirs) = ask(self.ours, path, body), ask(self.other, path, body)
        if status != peer_status:
            return [f"status: {status} and {peer_status}: {mine[:200]} and {theirs[:200]}"]
        if status != 200:
            return []
        a, b = json.loads(mine), json.loads(theirs)
        found = self._compare({k: a["usage"][k] for k in b["usage"] if k.endswith("_tokens")}, b["usage"], "usage")
        for x, y in zip(a["choices"], b["choices"], strict=True):
            found += self._compare(text_of(x), text_of(y), "text")
            for key in ("index", "finish_reason", "stop_reason", "token_ids", "prompt_token_ids"):
                found += self._compare(x.get(key), y.get(key), key)
            for key in ("logprobs", "prompt_logprobs"):
                if not (key == "prompt_logprobs" and body.get("echo")):      # vLLM adds them to an echo
                    found += self._compare(x.get(key), y.get(key), key)
        found += self._compare(streamed(self.ours, path, body), [text_of(choice) for choice in a["choices"]], "stream")
        return found

    def _compare(self, mine: Any, theirs: Any, where: str) -> list[str]:
        """Every value that the other server tells; what it lacks, as `refusal`, is passed over."""
        if isinstance(mine, dict) and isinstance(theirs, dict):
            return [d for key in theirs if theirs[key] is not None
                    for d in self._compare(mine.get(key), theirs[key], f"{where}.{key}")]
        if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
            pairs = zip(mine, theirs, strict=True)
            return [d for i, (x, y) in enumerate(pairs) for d in self._compare(x, y, f"{where}[{i}]")]
        if isinstance(mine, float) and isinstance(theirs, float):
            self.worst, self.compared = max(self.worst, abs(mine - theirs)), self.compared + 1
            return [f"{where}: {mine} and {theirs}"] if abs(mine - theirs) > TOLERANCE else []
        return [] if mine == theirs else [f"{where}: {mine!r:.200} and {theirs!r:.200}"]


def main() -> None:
    if sys.argv[1] == "--write":
        write_ascii_model(Path(sys.argv[2]))
        return
    comparison = Comparison(*sys.argv[1:4])
    requests = [(C, body) for body in completions()] + [(H, body) for body in chats()]
    equal = 0
    for path, body in requests:
        found = comparison.differences(path, body)
        equal += not found
        if found:
            print(path, json.dumps(body)[:150], *found[:5], sep="\n    ")
    print(f"{equal} of {len(requests)} requests equal; {comparison.compared} log-probabilities differ by at most "
          f"{comparison.worst:.1e}")
    sys.exit(equal < len(requests))


if __name__ == "__main__":
    main()
