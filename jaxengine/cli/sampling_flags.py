"""How to sample, as flags: one for each field of SamplingParams."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, get_type_hints

from jaxengine.cli.flags import Flag, add_flag, given
from jaxengine.types import SamplingParams


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a token id and a number, as 42=-1.5") from None


FLAGS = {
    "n": Flag("answers for each prompt"),
    "temperature": Flag("0 always takes the likeliest token; higher is more varied"),
    "top_k": Flag("sample among the K likeliest tokens (0: all)"),
    "top_p": Flag("sample among the likeliest tokens that hold this share of the probability"),
    "min_p": Flag("leave out tokens less likely than this share of the likeliest"),
    "repetition_penalty": Flag("above 1 makes tokens of the prompt and the answer less likely"),
    "presence_penalty": Flag("above 0 makes tokens of the answer less likely"),
    "frequency_penalty": Flag("the same, once for each time that a token occurred"),
    "logit_bias": Flag("add to a token's logit; may be repeated", parse=_bias, repeat=True, metavar="ID=BIAS"),
    "allowed_token_ids": Flag("sample only these tokens"),
    "bad_words": Flag("a text that must not appear; may be repeated", repeat=True, metavar="TEXT"),
    "min_tokens": Flag("no end before this many tokens"),
    "max_tokens": Flag("tokens of an answer at most"),
    "stop": Flag("end before this text; may be repeated", repeat=True, metavar="TEXT"),
    "stop_token_ids": Flag("end at one of these tokens"),
    "include_stop_str_in_output": Flag("keep the stop text in the answer"),
    "ignore_eos": Flag("go on after the model's own end of sequence"),
    "logprobs": Flag("with --json: log-probabilities of this many top tokens at each position"),
    "prompt_logprobs": Flag("with --json: the same for the prompt's tokens"),
    "skip_special_tokens": Flag("leave special tokens out of the text"),
}

# The engine's --seed makes a command repeatable, and a command line is there to print text.
# Grammars are for programs that read the output.
NOT_FLAGS = {"seed", "detokenize", "structured_outputs"}


def add_sampling_arguments(
    parser: argparse.ArgumentParser, max_tokens: int, leave_out: tuple[str, ...] = ()
) -> None:
    """A flag for each field not in `leave_out`; `max_tokens` is the default that the help states."""
    group = parser.add_argument_group("sampling", "Defaults are the checkpoint's where it recommends any.")
    hints = get_type_hints(SamplingParams)
    for field in fields(SamplingParams):
        if field.name not in NOT_FLAGS and field.name not in leave_out:
            default = max_tokens if field.name == "max_tokens" else field.default
            add_flag(group, field.name, hints[field.name], default, FLAGS[field.name])


def sampling_options(args: argparse.Namespace, max_tokens: int) -> dict[str, Any]:
    """The fields that the command line sets. Raises ValueError for a wrong value, before a model is loaded."""
    options: dict[str, Any] = {"max_tokens": max_tokens} | given(args, FLAGS)
    if "logit_bias" in options:
        options["logit_bias"] = dict(options["logit_bias"])
    SamplingParams(**options)
    return options
