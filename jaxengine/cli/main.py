"""`jaxengine COMMAND ...`: picks the subcommand, imports only that one, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from jaxengine import __version__
from jaxengine.cli import CommandError

COMMANDS = {
    "generate": "complete prompts, or answer one message",
    "serve": "serve a model over HTTP, with OpenAI's API",
    "chat": "talk with a model in the terminal",
    "models": "list the demo models and the supported architectures",
    "info": "show a model's configuration, memory plan and compile ledger",
    "convert": "write a checkpoint in another format",
    "bench": "measure speed",
}

_EXAMPLES = """\
MODEL is a demo name (see `jaxengine models`), a Hugging Face folder, a .gguf file, a folder that
`jaxengine convert` wrote, or a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct.

examples:
  jaxengine serve smollm2-135m-instruct
  jaxengine chat smollm2-135m-instruct
  jaxengine generate smollm2-135m-instruct --chat "What is the capital of France?" --temperature 0
  jaxengine generate ./my-model --prompt "Once upon a time" --prompt "The sky is" --max-tokens 32 --json
  jaxengine info smollm2-135m-instruct --max-num-seqs 8

`jaxengine COMMAND --help` explains a command.

environment:
  JAXENGINE_ACCEPT_GEMMA_TERMS=1   accept the terms of Gemma models
  JAXENGINE_API_KEY=KEY            the key that jaxengine serve asks for
  JAXENGINE_TRACEBACK=1            show where an error arose
  JAX_PLATFORMS=cpu                keep off the accelerator

exit codes: 0 done, 1 failed, 2 wrong usage or a value that cannot be served, 130 interrupted
"""

USAGE, FAILED, INTERRUPTED, BROKEN_PIPE = 2, 1, 130, 141


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv and argv[0] in COMMANDS else None
    if name is None:
        return _top_level(argv)
    try:
        command = import_module(f"jaxengine.cli.{name}")
        parser = argparse.ArgumentParser(
            f"jaxengine {name}", usage=f"jaxengine {name} {command.USAGE}", description=command.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )
        command.add_arguments(parser)
        code = command.run(parser.parse_args(argv[1:]))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left, as `| head` does. The interpreter must not flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (ValueError, OSError, CommandError) as error:
        if os.environ.get("JAXENGINE_TRACEBACK"):
            raise
        print(f"jaxengine {name}: error: {error}", file=sys.stderr)
        return USAGE if isinstance(error, (ValueError, FileNotFoundError)) else FAILED


def _top_level(argv: list[str]) -> int:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        "jaxengine", usage="jaxengine COMMAND [options]", epilog=_EXAMPLES,
        description=f"An inference engine for language models in JAX.\n\ncommands:\n{commands}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jaxengine {__version__}")
    if not argv:
        parser.print_help()
        return USAGE
    _, rest = parser.parse_known_args(argv)
    parser.error(f"unknown command {rest[0]!r}; known: {', '.join(COMMANDS)}")


if __name__ == "__main__":
    sys.exit(main())
