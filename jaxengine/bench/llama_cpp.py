"""llama.cpp as a peer: runs its own benchmark programs and reads their JSON."""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxengine.bench.environment import num_cores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("llama.cpp", "Measured in turn with this engine, on the same machine.")
    group.add_argument("--llama-bench-dir", metavar="FOLDER", help="holds llama-batched-bench and llama-bench")
    group.add_argument("--gguf", metavar="FILE", help="the same model for it, e.g. in BF16")
    group.add_argument("--llama-threads", type=int, default=num_cores(), metavar="N", help="[the machine's cores]")


def from_arguments(args: argparse.Namespace) -> LlamaCpp | None:
    """The peer, or None where it was not asked for. Raises ValueError where half of it was."""
    if (args.llama_bench_dir is None) != (args.gguf is None):
        raise ValueError("--llama-bench-dir and --gguf go together: the programs, and the model they run")
    if args.llama_bench_dir is None:
        return None
    for path in (Path(args.llama_bench_dir) / "llama-bench", Path(args.gguf)):
        if not path.is_file():
            raise ValueError(f"{path} is not there")
    return LlamaCpp(Path(args.llama_bench_dir), Path(args.gguf), args.llama_threads)


@dataclass(frozen=True)
class LlamaCpp:
    folder: Path
    gguf: Path
    threads: int

    def decode_rates(self, streams: list[int], prompt_len: int, output_len: int) -> dict[int, float]:
        """Decoded tokens a second by number of streams."""
        context = max(streams) * (prompt_len + output_len) + 256
        text = self._run(
            "llama-batched-bench", "-c", context, "-b", 2048, "-ub", 512, "-npp", prompt_len, "-ntg", output_len,
            "-npl", ",".join(map(str, streams)), "-tb", self.threads, "--output-format", "jsonl",
        )
        rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return {row["pl"]: row["speed_tg"] for row in rows}

    def prefill_rate(self, prompt_len: int) -> float:
        """Prompt tokens a second of one prompt; the head runs for its last token alone."""
        text = self._run("llama-bench", "-p", prompt_len, "-n", 0, "-r", 1, "-o", "json")
        return json.loads(text)[0]["avg_ts"]

    def prefill_batch_rate(self, prompts: int, prompt_len: int) -> float:
        """Prompt tokens a second of several prompts together."""
        text = self._run(
            "llama-batched-bench", "-c", prompts * (prompt_len + 1) + 256, "-b", 2048, "-ub", 512, "-npp", prompt_len,
            "-ntg", 1, "-npl", prompts, "-tb", self.threads, "--output-format", "jsonl",
        )
        return next(json.loads(line)["speed_pp"] for line in text.splitlines() if line.startswith("{"))

    def _run(self, program: str, *options: Any) -> str:
        command = [self.folder / program, "-m", self.gguf, "-t", self.threads, *options]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"{program} failed: {done.stderr.strip()[-500:]}")
        return done.stdout
