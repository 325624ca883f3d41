"""The child process in which grammars are tried: one that hangs or crashes llguidance takes this process along.

A script of its own (`python -I trial.py`) that imports the standard library and llguidance alone. One JSON
object a line comes in and one goes out. The first line in says where packages lie, gives the vocabulary and
the limits; it is answered by {}. Each further one is {"grammar": text, "is_gbnf": bool}, answered by
{"error": text or null, "grammar": the text to compile}. CPU time and memory beyond the limits end the process.
"""

import contextlib
import importlib
import json
import random
import signal
import sys
import threading

STACK_BYTES = 2 << 20      # a quarter of what an ordinary thread has: what fits here fits there
WALK_TOKENS = 16


class TokenTable:
    """What llguidance asks of a tokenizer. The trial does not care which of a text's spellings is forced."""

    is_tokenizer_wrapper = True

    def __init__(self, tokens: list[bytes], special_ids: list[int], eos_id: int) -> None:
        self.tokens, self.special_token_ids = tokens, special_ids
        self.eos_token_id, self.bos_token_id = eos_id, None
        special = set(special_ids)
        self._id_of = {token: i for i, token in enumerate(tokens) if token and i not in special}
        self._longest = max(map(len, self._id_of), default=1)

    def __call__(self, text: str) -> list[int]:
        """The longest token first."""
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            for end in range(min(len(data), at + self._longest), at, -1):
                if data[at:end] in self._id_of:
                    ids.append(self._id_of[data[at:end]])
                    at = end
                    break
            else:
                return ids
        return ids


def walk(matcher, rng: random.Random) -> str | None:
    """Follows the grammar for some tokens of its choice; what goes wrong, if anything does."""
    for _ in range(WALK_TOKENS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return matcher.get_error()
        if matcher.is_stopped():
            return None
        at = rng.randrange(len(mask))
        rest = mask[at:].lstrip(b"\0") or mask.lstrip(b"\0")
        if not rest:
            return "no token of the model's vocabulary can begin what it describes"
        bits = [bit for bit in range(8) if rest[0] >> bit & 1]
        if not matcher.consume_token(8 * (len(mask) - len(rest)) + rng.choice(bits)):
            return matcher.get_error()
    return None


def serve() -> None:
    hello = json.loads(sys.stdin.readline())
    sys.path[:] = hello["path"]
    llguidance = importlib.import_module("llguidance")
    to_lark = importlib.import_module("llguidance.gbnf_to_lark").gbnf_to_lark
    limit_memory(hello["max_memory_bytes"])
    tokens = [token.encode("latin-1") for token in hello["tokens"]]
    table = TokenTable(tokens, hello["special_ids"], hello["eos_ids"][0])
    tokenizer = llguidance.LLTokenizer(table, eos_token=hello["eos_ids"])
    limits = llguidance.LLParserLimits(**hello["parser_limits"])
    answer({})
    for line in sys.stdin:
        request = json.loads(line)
        start_clock(hello["cpu_s"])
        text = request["grammar"]
        try:
            if request["is_gbnf"]:
                text = json.dumps({"grammars": [{"lark_grammar": to_lark(text)}]})
        except Exception as error:      # the converter raises nothing narrower
            answer({"error": f"it is no GBNF: {error}", "grammar": text})
            continue
        matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits)
        error = matcher.get_error() if matcher.is_error() else walk(matcher, random.Random(0))
        start_clock(0)
        answer({"error": error, "grammar": text})


def answer(message: dict) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def start_clock(seconds: float) -> None:
    """The process ends when it has used so much CPU time; 0 stops the clock."""
    if hasattr(signal, "setitimer"):      # elsewhere the parent's own clock must do
        signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_memory(num_bytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):      # not everywhere, and never needed for an answer
        resource = importlib.import_module("resource")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    worker = threading.Thread(target=serve, daemon=True)
    worker.start()
    worker.join()
