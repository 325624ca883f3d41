"""Completes prompts, or answers one chat message.

The text of a single prompt appears while it is made; several prompts run together and are printed in order.

  jaxengine generate smollm2-135m-instruct --prompt "The capital of France is" --max-tokens 8 --temperature 0
  jaxengine generate smollm2-135m-instruct --chat "Name three rivers." --system "Be brief."
  jaxengine generate gemma3-270m --accept-gemma-terms --prompt "1, 2, 3," --json
  echo "A haiku about rain:" | jaxengine generate smollm2-135m-instruct --prompt -
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from jaxengine.cli import CommandError
from jaxengine.cli.engine_flags import add_model_arguments, open_llm
from jaxengine.cli.sampling_flags import add_sampling_arguments, sampling_options
from jaxengine.types import RequestOutput, SamplingParams

if TYPE_CHECKING:
    from jaxengine.engine.llm import LLM

USAGE = "MODEL (--prompt TEXT | --chat TEXT) [options]"
MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    group = parser.add_argument_group("input and output")
    what = group.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--prompt", action="append", metavar="TEXT", help="text to go on from (-: standard input); may be repeated",
    )
    what.add_argument("--chat", metavar="TEXT", help="a message to answer, through the model's chat template")
    group.add_argument("--system", metavar="TEXT", help="with --chat: the system message before it")
    group.add_argument("--json", action="store_true", help="print one JSON object a prompt instead of text")
    add_sampling_arguments(parser, MAX_TOKENS)


def run(args: argparse.Namespace) -> int:
    if args.system is not None and args.chat is None:
        raise ValueError("--system needs --chat: a plain prompt has no system message")
    options = sampling_options(args, MAX_TOKENS)
    if not args.json and ("logprobs" in options or "prompt_logprobs" in options):
        raise ValueError("--logprobs and --prompt-logprobs need --json: plain text has no place for them")
    prompts = [sys.stdin.read() if text == "-" else text for text in args.prompt or []]
    with open_llm(args) as llm:
        params = llm.default_sampling_params().replace(**options)
        if args.json or len(prompts) > 1 or params.n > 1:
            _print_all(llm, args, prompts, params)
        else:
            _stream_one(llm, args, prompts, params)
    return 0


def _messages(args: argparse.Namespace) -> list[dict[str, str]]:
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    return [*system, {"role": "user", "content": args.chat}]


def _stream_one(llm: LLM, args: argparse.Namespace, prompts: list[str], params: SamplingParams) -> None:
    if args.chat is not None:
        outputs = llm.stream_chat(_messages(args), params, output_kind="delta")
    else:
        outputs = llm.stream(prompts, params, output_kind="delta")
    for output in outputs:
        _raise_error(output)
        print(output.outputs[0].text, end="", flush=True)
    print()


def _print_all(llm: LLM, args: argparse.Namespace, prompts: list[str], params: SamplingParams) -> None:
    show_progress = sys.stderr.isatty()
    if args.chat is not None:
        results = llm.chat(_messages(args), params, use_tqdm=show_progress)
    else:
        results = llm.generate(prompts, params, use_tqdm=show_progress)
    for result in results:
        if args.json:
            print(json.dumps(asdict(result), ensure_ascii=False))
            continue
        _raise_error(result)
        for completion in result.outputs:
            number = f" [{completion.index}]" if params.n > 1 else ""
            print(f"--- {result.prompt!r}{number}")
            print(completion.text)


def _raise_error(output: RequestOutput) -> None:
    if output.error is not None:
        raise CommandError(output.error)
