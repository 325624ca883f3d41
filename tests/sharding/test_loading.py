"""Each tensor's shards go straight to their devices, and an Orbax checkpoint fits any mesh."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads memory use from /proc"),
]
CASES = [(form, *mesh) for form in ("published", "orbax") for mesh in [(1, 4, 2), (4, 2, 1)]]


def run(*arguments: object) -> str:
    command = [sys.executable, Path(__file__).parent / "loading.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int, int, int], dict[str, Any]]:
    """By form and mesh. The Orbax checkpoint was written from a mesh of 2 x 2 x 2."""
    folder = tmp_path_factory.mktemp("loading")
    run("write", folder)
    return {case: json.loads(run("read", folder, *case)) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_device_holds_its_part_of_the_same_weights(findings, case):
    found, data = findings[case], case[1]
    assert found["placed"]
    assert found["equal"]
    # Weights are split over tensor parallelism, but for norms and, along the group, keys and values.
    assert data * found["whole"] <= found["on_devices"] < 1.2 * data * found["whole"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_host_never_holds_the_model(findings, case):
    """At most two parameters besides what lies on the devices, which here is the host's memory, too; of Orbax, at
    most two batches of 16 MiB, which is the least that it reads at once."""
    found = findings[case]
    if case[1] == 1:      # the measurement saw the weights themselves; fake devices may share what is replicated
        assert found["on_devices"] < found["rise"] + 2**21
    batch = found["largest"] if case[0] == "published" else max(found["largest"], 16 << 20)
    assert 2 * batch < found["whole"]
    assert found["rise"] < found["on_devices"] + 2 * batch
