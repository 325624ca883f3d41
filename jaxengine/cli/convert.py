"""Writes a checkpoint in another format.

  orbax        weights already fused and laid out as the engine holds them: the fastest to open again
  huggingface  a folder of safetensors that other programs read

  jaxengine convert smollm2-135m-instruct ./smollm2-bf16 --format huggingface --dtype bfloat16
  jaxengine convert ./my-model ./my-model-orbax
"""

from __future__ import annotations

import argparse

from jaxengine import checkpoint
from jaxengine.cli.engine_flags import accepts_terms, add_terms_argument
from jaxengine.config import DTYPES

USAGE = "MODEL OUT [options]"
FORMATS = ("orbax", "huggingface")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="demo name, folder, .gguf file or hub id")
    parser.add_argument("out", metavar="OUT", help="the folder to write; it must not exist yet")
    parser.add_argument("--format", choices=FORMATS, default="orbax", help="[orbax]")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="numbers to store [auto: the checkpoint's]")
    add_terms_argument(parser)


def run(args: argparse.Namespace) -> int:
    accept = accepts_terms(args)
    print(checkpoint.convert(args.model, args.out, args.format, args.dtype, accept_terms=accept))
    return 0
