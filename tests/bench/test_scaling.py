"""The scaling report: its arithmetic by hand, its cells from lowered programs, and going on where it was."""

import argparse
import csv
import json
import subprocess
from pathlib import Path

import pytest

from jaxengine.bench import scaling, scaling_plot
from jaxengine.bench.prediction import Exchange, Machine, StepWork, predict
from jaxengine.bench.report import Report
from jaxengine.bench.scaling_cells import Cell

MACHINE = Machine(memory_bytes=1e9, hbm=1e9, flops=1e12, link=1e8, delay=1e-3)
LAYERS, WIDTH, FEED, VOCAB, HEADS, KV_HEADS, HEAD = 4, 64, 128, 512, 4, 2, 16      # of `model`


def test_a_sum_goes_round_twice_and_waits_each_time():
    assert Exchange("all-reduce", 10**6, 4, 3).seconds(MACHINE) == pytest.approx(3 * (1e-3 + 2 * 0.75 * 1e6 / 1e8))
    assert Exchange("all-gather", 10**6, 4, 1).seconds(MACHINE) == pytest.approx(1e-3 + 0.75 * 1e6 / 1e8)


def test_a_step_takes_the_longer_of_bytes_and_operations():
    exchanges = (Exchange("all-reduce", 10**6, 2, 1),)
    work = StepWork(10**9, 2 * 10**8, 1e12, 10**8, 5e7, 1e9, exchanges)
    predicted = predict(work, MACHINE)
    assert (predicted.matmul_s, predicted.attention_s) == (1.0, 0.05)      # operations; bytes
    assert predicted.step_s == pytest.approx(1.0 + 0.05 + 1e-3 + 1e6 / 1e8)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": FEED,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "max_position_embeddings": 512, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }))
    return str(path)


def measure(model: str, out: Path, *options: str) -> Report:
    parser = argparse.ArgumentParser()
    scaling.add_arguments(parser)
    sizes = ["--models", model, "--batch", "8", "--context", "128", "--chunk", "64", "--out", str(out)]
    return scaling.measure(parser.parse_args([*sizes, *options]))


@pytest.mark.slow
def test_a_cell_is_what_its_program_does(model: str, tmp_path: Path):
    report = measure(model, tmp_path / "out", "--meshes", "2x4", "--steps", "decode")
    (row,) = report.rows
    rows, tensor, kv = 4, 4, 2      # of eight sequences on two shards; KV heads split over two of four devices
    assert row["sums"] == 2 * LAYERS + 1
    assert row["sums MB"] == pytest.approx((2 * LAYERS + 1) * rows * WIDTH * 2 / 1e6)      # bfloat16 as on accelerators
    assert row["others"] == 1
    assert row["others MB"] == pytest.approx(3 * 4 * rows * tensor / 1e6)
    attention = WIDTH * HEADS * HEAD * 2 / tensor + 2 * WIDTH * KV_HEADS * HEAD / kv
    matrices = LAYERS * (attention + 3 * WIDTH * FEED / tensor) + VOCAB * WIDTH / tensor
    norms = (2 * LAYERS + 1) * WIDTH * 4
    assert row["weights GB"] == pytest.approx((2 * (matrices + VOCAB * WIDTH / tensor) + norms) / 1e9)
    assert row["matmul ms"] == pytest.approx(max(2 * matrices / 4.3e12, 2 * rows * matrices / 790e12) * 1e3)
    kv_bytes = LAYERS * 2 * KV_HEADS / kv * HEAD * 2
    assert row["attention ms"] == pytest.approx(rows * 128 * kv_bytes / 4.3e12 * 1e3)
    assert row["pool GB"] == pytest.approx((rows * 8 + 1) * 16 * kv_bytes / 1e9)
    assert row["tok/s"] == pytest.approx(8 / row["step ms"] * 1e3)
    with open(tmp_path / "out" / "results.csv", newline="") as file:
        assert [line["cell"] for line in csv.DictReader(file)] == [row["cell"]]


@pytest.mark.slow
def test_what_is_done_is_not_done_again(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = measure(model, tmp_path / "out", "--meshes", "1x1", "--steps", "prefill")
    kept = (tmp_path / "out" / "results.jsonl").read_text()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a kept cell was lowered again")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    second = measure(model, tmp_path / "out", "--meshes", "1x1", "--steps", "prefill", "--hbm", "4.3e11")
    assert second.rows[0]["matmul ms"] == pytest.approx(10 * first.rows[0]["matmul ms"])
    assert (tmp_path / "out" / "results.jsonl").read_text() == kept
    with pytest.raises(AssertionError, match="lowered again"):
        measure(model, tmp_path / "out", "--meshes", "1x1", "--steps", "prefill", "--chunk", "32")


@pytest.mark.slow
def test_a_mesh_that_heads_cannot_be_split_over_is_left_out(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    report = measure(model, tmp_path / "out", "--meshes", "1x3,1x2", "--steps", "decode")
    assert [row["tensor"] for row in report.rows] == [2]
    assert report.facts["left out"] == f"{model} 1x3"
    assert "tensor_parallel_size=3 cannot split the model's 4 query heads over 2 KV heads" in capsys.readouterr().err
    with pytest.raises(ValueError, match="tensor_parallel_size=3 cannot split"):
        measure(model, tmp_path / "out", "--meshes", "1x3", "--steps", "decode")


def test_an_id_follows_the_model_and_not_its_name(model: str, tmp_path: Path):
    copy = tmp_path / "copy.json"
    copy.write_text(Path(model).read_text())
    cell = Cell(model, 1, 2, "decode", 8, 128)
    assert cell.id == Cell(str(copy), 1, 2, "decode", 8, 128).id
    assert cell.id != Cell(model, 2, 1, "decode", 8, 128).id
    copy.write_text(copy.read_text().replace('"hidden_size": 64', '"hidden_size": 128'))
    assert cell.id != Cell(str(copy), 1, 2, "decode", 8, 128).id


@pytest.mark.parametrize(("option", "message"), [
    (["--meshes", "8"], "'8' is not DATAxTENSOR"),
    (["--meshes", "3x1"], "--batch 8 cannot be shared by 3 shards"),
    (["--steps", "train"], "'train' is unknown; known: decode, prefill"),
])
def test_wrong_cells_are_refused(model: str, tmp_path: Path, option: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        measure(model, tmp_path / "out", *option)


def test_without_matplotlib_the_report_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(scaling_plot, "find_spec", lambda name: None)
    assert "matplotlib is missing" in scaling_plot.draw([], tmp_path / "plot.png")
