"""Every benchmark runs on a tiny model and says what it promises. What a figure is, is not asserted."""

import argparse
import itertools
import json
import mmap
import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from jaxengine.bench import all as everything
from jaxengine.bench import batching, decode, host, memory, serve, start
from jaxengine.bench.drive import drain
from jaxengine.bench.floor import ModelSize
from jaxengine.bench.report import Report
from jaxengine.bench.stand_in import stand_in_engine
from jaxengine.bench.workload import Prompt, greedy
from jaxengine.checkpoint import open_checkpoint
from jaxengine.cli.main import main
from jaxengine.config import EngineConfig
from jaxengine.engine.engine import Engine
from jaxengine.tokenizer import load_tokenizer

Measure = Callable[..., Report]


def parse(module: ModuleType, *options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(options)


def test_decode(measure: Measure):
    report = measure("decode", "--streams", "1,4", "--prompt-len", "12", "--steps", "5")
    assert [row["streams"] for row in report.rows] == [1, 4]
    for row in report.rows:
        assert row["tok/s"] == pytest.approx(row["streams"] / row["ms/step"] * 1e3)
        assert row["over floor"] == pytest.approx(row["ms/step"] / row["floor ms"])
    assert report.facts["read GB/s"] > 0


def test_the_decode_clock_runs_over_full_steps_alone(tiny: Engine):
    """Prompts of 40 tokens, of which a step computes three: early streams decode while late ones are computed."""
    rate = decode.decode_rate(tiny, 8, 40, 6, random.Random(0))
    last = list(tiny.stats)[-6:]
    assert rate.streams == 8
    assert all((s.kind, s.num_seqs) == ("decode", 8) for s in last)
    assert rate.kv_tokens >= 8 * 40


def test_decode_with_a_peer(measure: Measure, monkeypatch: pytest.MonkeyPatch):
    class Peer:
        def decode_rates(self, streams: list[int], prompt_len: int, output_len: int) -> dict[int, float]:
            return {n: 10.0 * n for n in streams}

    monkeypatch.setattr(decode.llama_cpp, "from_arguments", lambda args: Peer())
    row = measure("decode", "--streams", "2", "--prompt-len", "12", "--steps", "3").rows[0]
    assert row["llama.cpp tok/s"] == 20.0
    assert row["over llama.cpp"] == pytest.approx(row["tok/s"] / 20.0)


def test_prefill(measure: Measure):
    report = measure("prefill", "--prompts", "1,3", "--prompt-len", "50")
    assert [row["prompts"] for row in report.rows] == [1, 3]
    assert report.rows[1]["tok/s"] == pytest.approx(150 / report.rows[1]["ms"] * 1e3)


def test_mixed(measure: Measure, tmp_path):
    script = tmp_path / "peer.py"
    script.write_text("print('mixed4: 50.0 output tok/s')")
    report = measure("mixed", "--requests", "4", "--peer-command", f"other={sys.executable} {script}")
    (row,) = report.rows
    assert row["other tok/s"] == 50.0
    assert row["over other"] == pytest.approx(row["output tok/s"] / 50)
    assert 0 < row["pool waste"] < 0.5
    assert 0 < row["padding"] < 1
    assert "decode[8] x" in report.facts["steps of mixed(4)"]


def test_batching(measure: Measure):
    report = measure("batching", "--requests", "16")
    rows = {row["batching"]: row for row in report.rows}
    assert rows["static"]["over static"] == 1
    assert rows["continuous"]["steps"] < rows["static"]["steps"]
    assert rows["continuous"]["sequences/step"] > rows["static"]["sequences/step"]


def test_static_batches_wait_for_their_longest(tiny: Engine):
    prompts = [Prompt([1, 2, 3], n) for n in (2, 10, 3, 4)]
    run = batching.static(tiny, prompts, 2)
    assert run.output_tokens == 19
    assert len(run.steps) == 10 + 4      # a prompt's step gives its first token


def test_prefix(measure: Measure):
    report = measure("prefix", "--prefix-len", "200", "--requests", "4")
    cold, warm, off, on = report.rows
    assert (cold["ratio"], off["ratio"]) == (1.0, 1.0)
    assert warm["ratio"] == pytest.approx(warm["ms"] / cold["ms"])
    assert on["ratio"] == pytest.approx(on["ms"] / off["ms"])


def test_chunked(measure: Measure):
    report = measure("chunked", "--streams", "3", "--prompt-len", "120", "--chunk", "24")
    whole, chunks = report.rows
    assert whole["over whole"] == 1
    assert chunks["prefill"] == "chunks of 24"
    assert all(row["P99 ms"] >= row["median ms"] > 0 for row in report.rows)


def test_host_without_text(tiny: Engine):
    """With a stand-in device the parts are nearly all there is."""
    engine = stand_in_engine(EngineConfig.from_options(max_num_seqs=4, max_num_batched_tokens=512), 50, 1024, None)
    for sampling in host.SAMPLING:
        found = host.host_time(engine, sampling, 10)
        assert 0 < sum(found.parts.values()) <= found.step_s
        assert found.parts["output_s"] > 0
    assert engine.blocks.num_used == 0
    engine.runner.close()


def test_host_with_text(smollm2: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "host", "--sequences", "2,4", "--repeats", "1", "--steps", "5", "--model", smollm2]) == 0
    lines = capsys.readouterr().out.splitlines()[-7:]
    assert [line.split()[:2] for line in lines[1:]] == [[n, s] for n, s in itertools.product("24", host.SAMPLING)]


def test_the_stand_in_generates_text(smollm2: str):
    engine = host._engine(3, host.load_tokenizer(host.open_checkpoint(smollm2)))
    host.start(engine, "greedy", 20)
    outputs = [output for _ in range(10) for output in engine.step()]
    assert len(outputs) == 30
    assert "".join(output.outputs[0].text for output in outputs)
    drain(engine)
    engine.runner.close()


def test_first_bytes_are_timed():
    quick = [sys.executable, "-c", "print('x', flush=True); import time; time.sleep(0.5)"]
    assert start.first_token_s(quick) > 0
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        start.first_token_s([sys.executable, "-c", "print(1/0)"])
    with pytest.raises(ValueError, match="failed"):
        start.first_token_s([sys.executable, "-c", ""])


def test_start(monkeypatch: pytest.MonkeyPatch):
    folders: list[str] = []
    monkeypatch.setattr(start, "first_token_s", lambda command: float(folders.append(command[-1]) or len(folders)))
    monkeypatch.setattr(start, "_run_s", lambda code: float(len(code)))
    report = start.measure(parse(start, "--repeats", "3"))
    names = [folder.rsplit("/", 1)[1] for folder in folders]
    assert names[0] == "warm"                            # fills the cache
    assert names.count("warm") == 4
    assert {"cold0", "cold1", "cold2"} <= set(names)     # each cold start has a folder of its own
    over = {row["what"]: row["over import jax, s"] for row in report.rows}
    assert over["import jax"] == 0
    assert over["import jaxengine"] > 0
    assert over["first token, no cache"] is None


def test_memory(measure: Measure, tiny: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "open_engine", lambda model, options: tiny)
    report = measure("memory", "--steps", "50")
    what = [row["what"] for row in report.rows]
    assert what[:2] == ["weights", "KV pool"]
    assert what[-1] == "growth over 50 steps"
    assert report.rows[0]["MB"] == tiny.memory_plan.weight_bytes / 1e6


def test_growth_sees_a_leak(tiny: Engine, monkeypatch: pytest.MonkeyPatch):
    kept: list[mmap.mmap] = []
    step = tiny.step

    def leak() -> Any:      # pages of its own: memory that earlier tests have freed would hide it
        kept.append(mmap.mmap(-1, 2_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        kept[-1].write(b"x" * 2_000_000)
        return step()

    monkeypatch.setattr(tiny, "step", leak)
    grown = memory.growth(tiny, 100)
    assert grown is None or grown > 50_000_000


def test_the_command_line(tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The whole way once: an engine of random weights, its own flags on the engine's defaults, JSON."""
    monkeypatch.setattr(decode, "measure_floor", lambda engine, rows: decode.Floor(
        size=ModelSize(1000, 100, 4, 16.0, (8, 8)), read=1e9, rates=dict.fromkeys(rows, 1e9)
    ))
    file = tmp_path / "decode.json"
    code = main([
        "bench", "decode", "--model", "random:tiny", "--dtype", "float32", "--warmup", "lazy", "--streams", "2",
        "--steps", "3", "--prompt-len", "5", "--repeats", "1", "--block-size", "8", "--json", str(file),
    ])
    assert code == 0
    assert "tok/s" in capsys.readouterr().out
    kept = json.loads(file.read_text())
    assert kept["name"] == "decode"
    assert kept["facts"]["block_size"] == 8
    assert kept["facts"]["model"] == "random:tiny"


def test_wrong_values_are_told(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "decode", "--gguf", "x", "--model", "random:tiny", "--warmup", "lazy"]) == 2
    assert "go together" in capsys.readouterr().err
    assert main(["bench", "host", "--repeats", "0", "--model", "none"]) == 2
    assert "--repeats 0" in capsys.readouterr().err
    assert main(["bench", "all", "--only", "host,nothing"]) == 2
    assert "nothing is unknown" in capsys.readouterr().err


def test_all_runs_each_by_itself_and_tells_what_failed(tmp_path, capfd: pytest.CaptureFixture[str]):
    file = tmp_path / "all.json"
    args = parse(everything, "--only", "host,prefix", "--model", "none", "--json", str(file))
    assert everything.run(args) == 1      # a model called "none" is only host's
    (report,) = json.loads(file.read_text())
    assert report["name"] == "host"
    assert {row["sequences"] for row in report["rows"]} == {32, 256}
    captured = capfd.readouterr()
    assert "ms/step" in captured.out
    assert captured.err.endswith("prefix failed\n")


def test_greedy_is_ids_alone():
    assert not greedy(3).detokenize
    assert greedy(3).ignore_eos


def test_serve(measure: Measure, tiny: Engine, smollm2: str, monkeypatch: pytest.MonkeyPatch):
    """Both engines give through HTTP as many tokens as when they are driven; the stand-in's pace bounds its rate."""
    monkeypatch.setattr(tiny, "tokenizer", load_tokenizer(open_checkpoint(smollm2, progress=False)))
    report = measure("serve", "--requests", "4", "--step-ms", "2")
    rows = {row["what"]: row for row in report.rows}
    assert list(rows) == ["engine", "engine, HTTP", "stand-in", "stand-in, HTTP"]
    assert rows["stand-in, HTTP"]["output tok/s"] < rows["stand-in"]["output tok/s"] < 4 / 0.002
    for name in ("engine, HTTP", "stand-in, HTTP"):
        assert rows[name]["less client tok/s"] > rows[name]["output tok/s"]
        assert 0 < rows[name]["TTFT p50 ms"] <= rows[name]["TTFT p99 ms"]


def test_serve_tells_of_a_peer_that_refuses():
    with pytest.raises(ValueError, match=r"client of http://127\.0\.0\.1:9 failed"):
        serve.client("http://127.0.0.1:9", "m", 1, 100)
    with pytest.raises(ValueError, match="NAME=URL"):
        serve._peer("http://127.0.0.1:9")
