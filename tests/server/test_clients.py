"""Clients that people use, each in a process of its own: text, tools and objects, whole and streamed.

The scripts in clients/ print what they got. `.ci/clients` installs what they need; without it they are skipped, or
fail with CI_REQUIRE_CLIENTS=1.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wire import Wire

HERE = Path(__file__).parent / "clients"
INSTALLED = Path(__file__).parents[2] / ".venv-clients"
HELLO = [{"role": "user", "content": "Hello"}]
PLACES = [{"city": city, "unit": unit} for city in ("Paris", "Rome") for unit in ("C", "F")]


@pytest.fixture(scope="module")
def truth(wire: Wire) -> dict[str, str]:
    """What the server says to the clients' question, over plain HTTP."""
    ask = {"temperature": 0, "max_tokens": 8}
    chat = wire.post("/v1/chat/completions", ask | {"messages": HELLO}).json
    completion = wire.post("/v1/completions", ask | {"prompt": "Hello"}).json
    return {"chat": chat["choices"][0]["message"]["content"], "completion": completion["choices"][0]["text"]}


@pytest.fixture
def run_client(wire: Wire, unharmed: None) -> Callable[..., dict[str, Any]]:
    def run(script: str, *command: str, **environment: str) -> dict[str, Any]:
        """Starts `command` with the script, the server's address and the model's name."""
        done = subprocess.run(
            [*command, str(HERE / script), wire.url + "/v1", "tiny"], capture_output=True, text=True, timeout=180,
            env=os.environ | environment,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def installed_python() -> str:
    python = INSTALLED / "bin" / "python"
    if not (INSTALLED / ".installed").exists():
        missing()
    return str(python)


def missing() -> None:
    tell = pytest.fail if os.environ.get("CI_REQUIRE_CLIENTS") == "1" else pytest.skip
    tell("needs clients from PyPI and npm: run .ci/clients")


def check(got: dict[str, Any], truth: dict[str, str], tool: str | None = "weather") -> None:
    """Every text is the server's, streams say what whole answers say, and forced forms were kept."""
    assert got["text"] == got["streamed"] == truth["chat"]
    assert got.get("completion", truth["completion"]) == truth["completion"]
    assert got["object"] == got.get("streamed_object", got["object"])
    assert got["object"] in PLACES
    if tool is not None:
        name, arguments = got["tool"]
        assert name == tool
        assert arguments in PLACES
        assert got["streamed_tool"] == got["tool"]
    assert got.get("error", [400, "top_p"]) == [400, "top_p"]


@pytest.mark.slow
def test_openai_of_this_environment(run_client: Any, truth: dict[str, str]) -> None:
    check(run_client("openai_python.py", sys.executable), truth)


@pytest.mark.slow
def test_openai_of_the_older_major_version(run_client: Any, truth: dict[str, str]) -> None:
    check(run_client("openai_python.py", installed_python()), truth)


@pytest.mark.slow
@pytest.mark.parametrize(("script", "tool"), [
    ("langchain_chat.py", "Place"), ("llm_package.py", None),
])
def test_python_clients(run_client: Any, truth: dict[str, str], script: str, tool: str | None) -> None:
    check(run_client(script, installed_python()), truth, tool)


@pytest.mark.slow
def test_litellm(run_client: Any, truth: dict[str, str]) -> None:
    """Not among what .ci/clients installs: it brings a hundred packages."""
    python = installed_python()
    if subprocess.run([python, "-m", "pip", "-q", "show", "litellm"], capture_output=True).returncode:
        pytest.skip(f"needs litellm: {python} -m pip install litellm")
    check(run_client("litellm_chat.py", python), truth)


@pytest.mark.slow
def test_instructor(run_client: Any) -> None:
    got = run_client("instructor_objects.py", installed_python())
    assert got["tool"][1] in PLACES
    assert got["object"] in PLACES


@pytest.mark.slow
@pytest.mark.parametrize("script", ["openai_node.mjs", "ai_sdk.mjs"])
def test_npm_clients(run_client: Any, truth: dict[str, str], script: str) -> None:
    path = os.environ["PATH"] + os.pathsep + str(Path(installed_python()).parent)
    got = run_client(script, "node", NODE_CLIENTS=str(INSTALLED / "node"), PATH=path)
    check(got, truth)
    assert got.get("tokens", 8) == 8
    assert got.get("partial_objects", 2) >= 2
