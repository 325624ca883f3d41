"""The parts that benchmarks are made of: repeats, reports, workloads, floors, random models."""

import json
import random
import sys
from argparse import Namespace
from functools import partial

import jax
import pytest

from jaxengine.bench import floor, peer, workload
from jaxengine.bench.drive import drive
from jaxengine.bench.floor import Floor, ModelSize, model_size
from jaxengine.bench.model import experiments, read_published, sibling
from jaxengine.bench.report import Report, finish, show, table
from jaxengine.bench.timing import alternate, percentile, spread
from jaxengine.engine.engine import Engine
from jaxengine.models.registry import family


def test_variants_take_turns_in_both_directions():
    calls: list[str] = []

    def call(name: str) -> int:
        calls.append(name)
        return len(calls)

    results = alternate({name: partial(call, name) for name in "ab"}, repeats=3, warmup=1)
    assert calls == list("abbaabba")
    assert results == {"a": [4, 5, 8], "b": [3, 6, 7]}


def test_percentile_is_the_nearest_rank():
    values = [float(v) for v in range(1, 101)]
    random.Random(0).shuffle(values)
    assert percentile(values, 99) == 99
    assert percentile(values, 100) == 100
    assert percentile([3.0, 1.0], 50) == 1
    assert percentile([7.0], 99) == 7
    assert spread([1.0, 2.0, 3.0]) == 1


def test_a_report_says_the_same_as_text_and_as_json(tmp_path, capsys):
    rows = [{"streams": 1, "tok/s": 83.25, "peer": None}, {"streams": 32, "tok/s": 1234.5, "peer": 0.5}]
    report = Report("decode", rows, {"model": "tiny"})
    assert finish(report, Namespace(json=str(tmp_path / "out.json"))) == 0
    printed = capsys.readouterr().out
    for part in ("decode:", "tiny", "tok/s", "83.2", "1234", "-"):
        assert part in printed
    kept = json.loads((tmp_path / "out.json").read_text())
    assert kept["rows"] == rows
    assert {"date", "cpu", "cores", "jax", "python", "device"} <= kept["environment"].keys()


def test_columns_are_as_wide_as_their_widest_cell():
    lines = table([{"a": 1, "long name": 2.0}, {"a": 100000, "b": "x"}]).splitlines()
    assert lines == ["     a  long name  b", "     1          2  -", "100000          -  x"]
    assert [show(v) for v in (0.0, 0.01234, 123.45, 12345.6, None, "x", 7)] == [
        "0", "0.0123", "123.5", "12346", "-", "x", "7"
    ]


def test_mixed_draws_what_the_peers_scripts_draw():
    r = random.Random(1)
    for prompt in workload.mixed(32):
        assert prompt.token_ids == [r.randrange(1000, 40000) for _ in range(r.randint(16, 128))]
        assert prompt.output_len == r.randint(16, 64)
    assert all(t < 512 for prompt in workload.mixed(8, vocab_size=512) for t in prompt.token_ids)


def test_a_floor_is_the_slower_of_reading_and_computing():
    size = ModelSize(
        body_params=900, head_params=100, bytes_per_param=2, kv_bytes_per_token=4.0, widest=(8, 8)
    )
    found = Floor(size, read=1000.0, rates={1: 1e6, 64: 1e4})
    assert found.decode_s(1, kv_tokens=0) == pytest.approx(2.0)             # 2,000 bytes at 1,000 a second
    assert found.decode_s(1, kv_tokens=250) == pytest.approx(3.0)           # and 1,000 bytes of KV
    assert found.decode_s(64, kv_tokens=0) == pytest.approx(12.8)           # 128,000 operations at 10,000 a second
    assert found.prefill_s(128, rows=64) == pytest.approx(2 * 128 * 900 / 1e4)      # no head


def test_the_size_of_a_model(tiny: Engine):
    size = model_size(tiny)
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 2 * 128 * 64 + 64 * 128      # q, kv, out, gate and up, down
    assert size.body_params == 2 * layer
    assert size.head_params == 512 * 64
    assert size.bytes_per_param == 4
    assert size.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4                   # layers, K and V, heads, width, bytes
    assert size.widest == (256, 64)
    vectors = sum(x.size for x in jax.tree.leaves(tiny.runner.params) if x.ndim == 1)
    assert size.weight_bytes + 4 * vectors == tiny.memory_plan.weight_bytes


def test_rates_are_positive(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(floor, "BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(floor, "DOTS", 3)
    assert floor.read_bandwidth() > 0
    assert floor.matmul_rate(1, (32, 64), "float32") > 0      # fewer outputs than inputs
    assert floor.matmul_rate(4, (64, 32), "bfloat16") > 0


@pytest.mark.parametrize("name", experiments())
def test_every_size_that_comes_along_is_served(name: str):
    published = read_published(name)
    cfg = family(published).Config.from_published(published)
    assert cfg.num_layers == published["num_hidden_layers"]


def test_an_unknown_size_names_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"random:huge.*smollm2-135m"):
        read_published("huge")
    (tmp_path / "config.json").write_text('{"architectures": ["X"]}')
    assert read_published(str(tmp_path)) == {"architectures": ["X"]}


def test_a_drive_counts_tokens_and_steps(tiny: Engine):
    prompts = workload.mixed(6, vocab_size=512)
    engine = sibling(tiny, cache={"enable_prefix_caching": False})
    looks = []
    run = drive(engine, prompts, on_step=lambda: looks.append(engine.blocks.num_used))
    assert run.output_tokens == sum(p.output_len for p in prompts)
    assert len(run.steps) >= max(p.output_len for p in prompts)
    assert len(looks) == len(run.steps) + 1      # the last step only reads
    assert sum(s.num_tokens for s in run.steps) == sum(len(p.token_ids) + p.output_len - 1 for p in prompts)
    assert 0 <= run.padding < 1
    assert run.kinds().startswith("decode[8] x ")
    assert engine.blocks.num_used == 0


def test_a_sibling_answers_alike(tiny: Engine):
    other = sibling(tiny, cache={"enable_prefix_caching": False}, scheduler={"max_num_batched_tokens": 16})
    texts = []
    for engine in (tiny, other):
        engine.add_request(list(range(40)), workload.greedy(5))
        outputs = []
        while engine.has_unfinished:
            outputs += engine.step()
        texts.append(outputs[-1].outputs[0].token_ids)
    assert texts[0] == texts[1]
    assert len(texts[0]) == 5


def test_a_peer_command_is_read(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text("print('other mixed16: 12.5 output tok/s, x'); print('mixed(32): 30 output tok/s')")
    command = f"{sys.executable} {script}"
    assert peer.output_rates(command, [16, 32]) == {16: 12.5, 32: 30.0}
    with pytest.raises(ValueError, match="mixed8: NUMBER"):
        peer.output_rates(command, [8])
    with pytest.raises(ValueError, match="failed"):
        peer.output_rates(f"{sys.executable} -c 1/0", [8])
    assert peer.from_arguments(Namespace(peer_command=["vllm-cpu=python x=1"])) == {"vllm-cpu": "python x=1"}
    with pytest.raises(ValueError, match="NAME=COMMAND"):
        peer.from_arguments(Namespace(peer_command=["python x"]))
