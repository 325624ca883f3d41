"""The peer's programs are called with the right sizes and their JSON is read; stand-ins take their place here."""

import stat
from argparse import Namespace
from pathlib import Path

import pytest

from jaxengine.bench.llama_cpp import LlamaCpp, from_arguments

BATCHED = """#!/bin/sh
echo "$@" >> {log}
echo 'some text'
echo '{{"pl": 1, "speed_tg": 83.5, "speed_pp": 700.0}}'
echo '{{"pl": 4, "speed_tg": 162.0, "speed_pp": 710.0}}'
"""
BENCH = """#!/bin/sh
echo "$@" >> {log}
echo '[{{"n_prompt": 512, "avg_ts": 750.25}}]'
"""


@pytest.fixture
def peer(tmp_path: Path) -> LlamaCpp:
    for name, text in (("llama-batched-bench", BATCHED), ("llama-bench", BENCH)):
        path = tmp_path / name
        path.write_text(text.format(log=tmp_path / "log"))
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
    (tmp_path / "model.gguf").touch()
    return LlamaCpp(tmp_path, tmp_path / "model.gguf", threads=2)


def test_rates_are_read(peer: LlamaCpp):
    assert peer.decode_rates([1, 4], 128, 64) == {1: 83.5, 4: 162.0}
    assert peer.prefill_rate(512) == 750.25
    assert peer.prefill_batch_rate(8, 512) == 700.0
    decode, prefill, batch = (peer.folder / "log").read_text().splitlines()
    assert "-npp 128 -ntg 64 -npl 1,4" in decode
    assert "-t 2" in decode
    assert "-p 512 -n 0" in prefill
    assert "-npl 8" in batch


def test_failure_is_told(peer: LlamaCpp):
    (peer.folder / "llama-bench").write_text("#!/bin/sh\necho no model >&2; exit 3\n")
    with pytest.raises(ValueError, match="llama-bench failed: no model"):
        peer.prefill_rate(512)


def test_half_a_peer_is_refused(peer: LlamaCpp):
    def args(folder, gguf):
        return Namespace(llama_bench_dir=folder, gguf=gguf, llama_threads=2)

    assert from_arguments(args(None, None)) is None
    assert from_arguments(args(str(peer.folder), str(peer.gguf))) == peer
    with pytest.raises(ValueError, match="go together"):
        from_arguments(args(str(peer.folder), None))
    with pytest.raises(ValueError, match="is not there"):
        from_arguments(args(str(peer.folder), str(peer.folder / "other.gguf")))
