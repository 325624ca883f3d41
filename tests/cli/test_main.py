"""Exit codes and messages: one clear line on standard error, never a traceback."""

import subprocess
import sys

import pytest

import jaxengine
from jaxengine.cli import CommandError, generate, main


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jaxengine.cli.main", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def called(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a command run in this process."""
    try:
        code = main.main(list(argv))
    except SystemExit as leave:      # argparse's way
        code = leave.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_version(capsys):
    assert called(capsys, "--version") == (0, f"jaxengine {jaxengine.__version__}\n", "")


def test_help_explains(capsys):
    code, out, _ = called(capsys, "--help")
    assert code == 0
    for name in main.COMMANDS:
        assert f"  {name}" in out
    assert "jaxengine chat smollm2-135m-instruct" in out


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_of_a_command_is_quick_to_come(name: str):
    code = f"import sys; from jaxengine.cli.main import main\ntry: main([{name!r}, '--help'])\n" \
           "except SystemExit as leave: sys.exit(leave.code or 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: jaxengine {name}")


def test_no_command_shows_the_help(capsys):
    code, out, _ = called(capsys)
    assert code == 2
    assert "commands:" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["fly"], "unknown command 'fly'; known: generate, serve, chat"),
        (["generate"], "the following arguments are required: MODEL"),
        (["generate", "m"], "one of the arguments --prompt --chat is required"),
        (["generate", "m", "--prompt", "x", "--chat", "y"], "not allowed with argument"),
        (["generate", "m", "--prompt", "x", "--temperature", "3"], "temperature=3.0 must be a number in [0.0, 2.0]"),
        (["generate", "m", "--prompt", "x", "--temperature", "nan"], "temperature=nan must be a number in"),
        (["generate", "m", "--prompt", "x", "--max-tokens", "-1"], "max_tokens=-1 must be a whole number"),
        (["generate", "m", "--prompt", "x", "--logit-bias", "5"], "'5' must be a token id and a number, as 42=-1.5"),
        (["generate", "m", "--prompt", "x", "--logprobs", "2"], "--logprobs and --prompt-logprobs need --json"),
        (["generate", "m", "--prompt", "x", "--system", "y"], "--system needs --chat"),
        (["generate", "m", "--prompt", "x", "--dtype", "int4"], "dtype='int4' is not supported; known: auto"),
        (["generate", "m", "--prompt", "x", "--block-size", "0"], "block_size=0 must be a whole number of at least 1"),
        (["generate", "m", "--prompt", "x", "--max-tok", "1"], "unrecognized arguments: --max-tok"),
        (["chat", "m", "--n", "2"], "unrecognized arguments: --n"),
        (["chat", "m", "--max-num-seqs", "9", "--max-num-batched-tokens", "8"], "max_num_batched_tokens=8 is smaller"),
        (["info", "no-such-model"], "no-such-model"),
        (["convert", "m", "out", "--format", "onnx"], "invalid choice: 'onnx'"),
        (["bench", "dance"], "benchmark 'dance' is unknown"),
    ],
)
def test_wrong_usage_is_told_in_one_line(capsys, argv: list[str], message: str):
    code, out, err = called(capsys, *argv)
    assert code == 2
    assert out == ""
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_missing_template_file_is_named(capsys):
    code, _, err = called(capsys, "chat", "m", "--chat-template", "/nowhere/t.jinja")
    assert (code, err.count("\n")) == (2, 1)
    assert "/nowhere/t.jinja" in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("a=1 is wrong"), 2), (FileNotFoundError(2, "No such file", "x"), 2), (OSError("no space left"), 1),
        (CommandError("the request failed"), 1), (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(monkeypatch, capsys, error: BaseException, code: int):
    def fail(args):
        raise error

    monkeypatch.setattr(generate, "run", fail)
    got, out, err = called(capsys, "generate", "m", "--prompt", "x")
    assert (got, out) == (code, "")
    assert err == ("\n" if code == 130 else f"jaxengine generate: error: {error}\n")


def test_our_own_faults_keep_their_traceback(monkeypatch):
    def fail(args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(generate, "run", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main.main(["generate", "m", "--prompt", "x"])


def test_the_traceback_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("JAXENGINE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="temperature"):
        main.main(["generate", "m", "--prompt", "x", "--temperature", "3"])


def test_a_reader_that_leaves_early_is_no_error():
    code = "import sys, jaxengine.cli.models as m\n" \
           "m.run = lambda args: print('line\\n' * 100_000) or 0\n" \
           "from jaxengine.cli.main import main; sys.exit(main(['models']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


def test_models_lists_what_can_be_served(capsys):
    code, out, _ = called(capsys, "models")
    assert code == 0
    for name in ("smollm2-135m-instruct", "gemma3-270m", "LlamaForCausalLM", "Apache-2.0"):
        assert name in out


@pytest.mark.floor
def test_the_module_runs_as_a_program():
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"jaxengine {jaxengine.__version__}\n", "")
