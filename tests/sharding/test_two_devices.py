"""The same numbers from two devices as from one: heads, groups, feed-forward and vocabulary split."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def lines() -> list[dict]:
    script = Path(__file__).parent / "two_devices.py"
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("model", "axis"), [("llama", "kv"), ("llama", "group"), ("gemma3", "kv"), ("llama_gelu", "group")]
)
def test_logits_on_two_devices_match_transformers(lines, model, axis):
    (line,) = [x for x in lines if x.get("model") == model and axis in x]
    assert line["difference"] < 1e-4


def test_the_pool_splits_over_kv_heads_and_weights_over_both_axes(lines):
    by_kv, by_group = [x for x in lines if x.get("model") == "llama"]
    heads = by_kv["pool_shape"][1]
    assert by_kv["pool_shard"][1] == heads // 2
    assert by_group["pool_shard"][1] == heads      # devices of a group share its KV heads
    assert by_kv["ffn_shard"] == by_group["ffn_shard"] == [48, 40]


def test_random_weights_do_not_depend_on_the_mesh(lines):
    (line,) = [x for x in lines if "init" in x]
    assert line["same"]
    assert line["embed_shard"] == [48, 48]      # half of 96 rows
