"""Every family through the whole engine on meshes of eight fake devices, against one device."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "eight_devices.py"
MESHES = [(1, 8), (2, 4), (4, 2), (8, 1)]      # data x tensor
SHARES = [("llama", "qwen3"), ("qwen2", "gemma2", "gemma3")]      # of two processes, one a core
FAMILIES = [family for share in SHARES for family in share]
LAYERS, SLOTS, VOCAB, WIDTH, SCORED = 2, 4, 96, 48, 64

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def findings() -> dict[tuple[str, int, int], dict[str, Any]]:
    processes = [
        subprocess.Popen([sys.executable, "-W", "error", SCRIPT, *share], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
        for share in SHARES
    ]
    try:
        results = [process.communicate(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors[-3000:]
    lines = [json.loads(line) for output, _ in results for line in output.splitlines()]
    return {(line["family"], line["data"], line["tensor"]): line for line in lines}


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_and_log_probabilities_are_those_of_one_device(findings, family, mesh):
    found = findings[family, *mesh]
    assert found["same"]
    assert 0 <= found["distance"] < 1e-4


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_devices_send_each_other_what_was_meant_and_nothing_else(findings, family, mesh):
    """Two sums a layer and one for the embedding; the best token of each device; rows for whole vocabularies."""
    found, (_, tensor) = findings[family, *mesh], mesh
    axes = [axis for axis in ("kv", "group") if found["mesh"][axis] > 1]

    def expected(kind: str, dtype: str, num_bytes: int, times: int = 1) -> list[dict[str, Any]]:
        one = {"kind": kind, "dtype": dtype, "num_bytes": num_bytes, "axes": axes}
        return [one] * times if tensor > 1 else []

    sent = found["sent"]
    assert {name.split("[")[0] for name in sent} == {"mixed", "decode", "greedy", "score"}
    sums = 2 * LAYERS + 1
    assert sent["mixed[48]"] == expected("all-reduce", "f32", 4 * 48 * WIDTH, sums)
    assert sent["decode[4]"] == expected("all-reduce", "f32", 4 * SLOTS * WIDTH, sums)
    for name in sent:
        if name.startswith("greedy"):      # the best logit, its id, and whether all are finite
            rows = int(name.removeprefix("greedy[").removesuffix("]"))
            assert sent[name] == expected("all-gather", "s32", 4 * 3 * rows * tensor)
    assert sent["score"] == expected("all-to-all", "f32", 4 * SCORED * VOCAB // tensor)


def test_few_kv_heads_split_as_far_as_they_go_and_query_heads_after_that(findings):
    sizes = {family: tuple(findings[family, 1, 8]["mesh"].values()) for family in FAMILIES}
    assert sizes == {
        "qwen2": (1, 8, 1), "llama": (1, 4, 2), "gemma2": (1, 4, 2), "qwen3": (1, 2, 4), "gemma3": (1, 1, 8),
    }
    assert findings["gemma3", 1, 8]["pool_shard"] == findings["gemma3", 1, 8]["pool"]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_shard_has_a_pool_of_its_own(findings, mesh):
    found, data = findings["llama", *mesh], mesh[0]
    blocks, heads, _ = found["pool"]
    assert blocks == data * 48
    assert found["pool_shard"][:2] == [48, heads // found["mesh"]["kv"]]
