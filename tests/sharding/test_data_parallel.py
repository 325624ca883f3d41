"""Forks, copies, preemption, prefix reuse, log-probabilities, penalties: the same on several shards as on one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def findings() -> list[dict[str, Any]]:
    script = Path(__file__).parent / "data_parallel.py"
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_same_tokens_and_log_probabilities(findings):
    assert [(found["data"], found["tensor"]) for found in findings] == [(1, 1), (2, 1), (2, 2)]
    assert all(found["tokens"] for found in findings)
    assert all(found["logprobs"] < 1e-4 for found in findings)
    assert findings[0]["num_logprobs"] > 50


def test_the_work_was_hard_enough_and_shared(findings):
    for found in findings:
        assert found["shards"] == found["data"]
        assert found["copies"] > 0
        assert found["preemptions"] > 0
        assert found["hits"] > 0


def test_a_prompt_that_comes_again_goes_where_it_is_cached(findings):
    assert [found["again"] for found in findings] == [[0, 16]] * 3


def test_aborting_some_leaves_the_others_alone(findings):
    assert all(found["aborted"] for found in findings)


def test_shards_send_each_other_nothing(findings):
    assert all(found["between_shards"] == 0 for found in findings)
