"""Any other engine as a peer: a command that runs the fixed workload and prints what it reached."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "peers", "Commands that run mixed(n) on the same model and print lines such as 'mixed32: 215.3 output tok/s'."
    )
    group.add_argument(
        "--peer-command", action="append", default=[], metavar="NAME=COMMAND",
        help="a peer's name and the command that measures it; may be repeated",
    )


def from_arguments(args: argparse.Namespace) -> dict[str, str]:
    """Commands by name. Raises ValueError for one without a name."""
    for text in args.peer_command:
        if not re.match(r"[\w. -]+=\S", text):
            raise ValueError(f"--peer-command {text!r} must be NAME=COMMAND")
    return dict(text.split("=", 1) for text in args.peer_command)


def output_rates(command: str, sizes: list[int]) -> dict[int, float]:
    """Runs the command; output tokens a second by n. Raises ValueError where it fails or does not say."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{command} failed: {done.stderr.strip()[-500:]}")
    rates = {}
    for n in sizes:
        match = re.search(rf"mixed\(?{n}\)?\s*:\s*([\d.]+) output tok/s", done.stdout)
        if match is None:
            raise ValueError(f"{command} printed no line 'mixed{n}: NUMBER output tok/s'")
        rates[n] = float(match[1])
    return rates
