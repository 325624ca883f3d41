"""The commands with the real demo model: what a newcomer sees."""

import io
import json
import subprocess
import sys

import pytest

import jaxengine
from jaxengine import LLM
from jaxengine.cli import main

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
OPTIONS = {"dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 256}


@pytest.fixture(scope="module")
def shared_llm(smollm2):
    with LLM(smollm2, progress=False, **OPTIONS) as llm:
        yield llm


@pytest.fixture
def cli(shared_llm, monkeypatch, capsys):
    """Runs a command on a model that is loaded once; returns (exit code, standard output, standard error)."""

    class Loaded:
        def __enter__(self):
            return shared_llm

        def __exit__(self, *exc):
            assert not shared_llm.engine.requests

    monkeypatch.setattr(jaxengine, "LLM", lambda model, **options: Loaded())

    def call(*argv: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main.main(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def reference(golden):
    cases = json.loads((golden / "reference_smollm2.json").read_text())["cases"]
    return next(case for case in cases if case["name"] == "capital")


def test_generate_streams_an_answer(cli):
    assert cli("generate", "m", "--chat", QUESTION, "--temperature", "0") == (0, ANSWER + "\n", "")


def test_json_holds_the_reference(cli, reference):
    code, out, _ = cli("generate", "m", "--chat", QUESTION, "--temperature", "0", "--max-tokens", "12", "--ignore-eos",
                       "--logprobs", "5", "--json")
    assert code == 0
    result = json.loads(out)
    assert result["prompt_token_ids"] == reference["prompt_ids"]
    completion = result["outputs"][0]
    assert completion["token_ids"] == reference["greedy_ids"][:12]
    assert (completion["finish_reason"], len(completion["logprobs"])) == ("length", 12)
    for token_id, logit in reference["first_step_top5_logits"]:
        logprob = completion["logprobs"][0][str(token_id)]["logprob"]
        assert logprob == pytest.approx(logit - reference["first_step_logsumexp"], abs=1e-3)


def test_several_prompts_are_printed_in_order(cli):
    code, out, _ = cli("generate", "m", "--prompt", "The sky is", "--prompt", "-", "--max-tokens", "3",
                       stdin="1, 2, 3,")
    headings = [line for line in out.splitlines() if line.startswith("---")]
    assert code == 0
    assert headings == ["--- 'The sky is'", "--- '1, 2, 3,'"]


def test_n_answers_are_numbered(cli):
    code, out, _ = cli("generate", "m", "--prompt", "The sky is", "--n", "2", "--max-tokens", "2")
    assert code == 0
    assert "--- 'The sky is' [0]\n" in out
    assert "--- 'The sky is' [1]\n" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--allowed-token-ids", "99999999"], "99999999"),
        (["--prompt-logprobs", "0", "--json", "--max-tokens", "400"], "256"),
    ],
)
def test_what_the_engine_refuses_is_told_in_one_line(cli, flags: list[str], message: str):
    code, out, err = cli("generate", "m", "--prompt", "word " * 300, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_chat_answers_each_line_and_remembers(cli):
    lines = f"{QUESTION}\n\nWhat did I ask?\n/reset\n{QUESTION}\n/exit\nnot read\n"
    code, out, err = cli("chat", "m", "--temperature", "0", "--max-tokens", "24", stdin=lines)
    assert code == 0
    answers = out.splitlines()
    assert answers[0] == answers[-1] == ANSWER
    assert "a new conversation" in err


def test_chat_says_what_it_does_not_know(cli):
    code, out, err = cli("chat", "m", stdin="/fly\n")
    assert (code, out) == (0, "")
    assert "unknown command /fly; there are /reset and /exit" in err


def test_a_message_that_cannot_fit_ends_a_piped_chat(cli):
    code, _, err = cli("chat", "m", stdin="word " * 300 + "\n")
    assert code == 2
    assert "of the context's 256 are for messages" in err


def test_info_shows_memory_and_executables(cli):
    code, out, _ = cli("info", "m")
    assert code == 0
    for part in ("num_layers", "reckoned", "KV pool", "decode[", "mixed["):
        assert part in out


def test_info_as_json(cli):
    code, out, _ = cli("info", "m", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["model"]["num_layers"] == 30
    assert facts["memory"]["num_blocks"] * facts["memory"]["block_bytes"] == facts["memory"]["pool_bytes"]
    assert all(entry["shapes"] for entry in facts["executables"])


def test_a_fresh_process_chats_from_a_pipe(smollm2):
    """What `make chat` runs when there is no terminal."""
    command = [sys.executable, "-m", "jaxengine.cli.main", "chat", smollm2, "--temperature", "0", "--config", "laptop"]
    done = subprocess.run(command, input=QUESTION + "\n", capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ANSWER + "\n"
    assert "Traceback" not in done.stderr
