"""The GGUF header parser: equal to the reference reader on a real file, and clear about every kind of damage."""

import re
import struct
import sys
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_checkpoints import bounded_memory, llama_gguf

from jaxengine.checkpoint import open_checkpoint
from jaxengine.checkpoint.dequantize import dequantize_rows, row_bytes
from jaxengine.checkpoint.ggml_types import GGML_TYPES
from jaxengine.checkpoint.gguf import read_gguf
from jaxengine.checkpoint.gguf_checkpoint import open_gguf


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def entry(key: str, code: int, value: bytes) -> bytes:
    return text(key) + u32(code) + value


def tensor(name: str, dims: tuple[int, ...] = (4,), code: int = 0, offset: int = 0) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(u64(d) for d in dims) + u32(code) + u64(offset)


def file_bytes(
    entries: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), data: int = 0, magic: bytes = b"GGUF",
    version: bytes = u32(3), num_entries: int | None = None, num_tensors: int | None = None, alignment: int = 32,
) -> bytes:
    head = magic + version
    head += u64(len(tensors) if num_tensors is None else num_tensors)
    head += u64(len(entries) if num_entries is None else num_entries)
    head += b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + bytes(data)


NESTED = u32(9) + u64(1)
BAD = {
    "an empty file": (b"", "not a GGUF file"),
    "another magic": (file_bytes(magic=b"GGML"), "begins with b'GGML'"),
    "version 1": (file_bytes(version=u32(1)), "GGUF version 1"),
    "big-endian": (file_bytes(version=struct.pack(">I", 3)), "big-endian"),
    "2^60 entries": (file_bytes(num_entries=2**60), "metadata claims 1152921504606846976 entries"),
    "2^60 tensors": (file_bytes(num_tensors=2**60), "tensor table claims"),
    "a header that just ends": (file_bytes((entry("k", 4, b""),), alignment=1), "the header is cut short"),
    "a string of 2^62 bytes": (file_bytes((u64(2**62) + b"x" * 40,)), "string claims 4611686018427387904 bytes"),
    "a string that is no UTF-8": (file_bytes((entry("k", 8, text(b"\xff\xfe")),)), "not UTF-8"),
    "an unknown value type": (file_bytes((entry("k", 77, u64(0)),)), "unknown value type 77"),
    "an unknown element type": (file_bytes((entry("k", 9, u32(77) + u64(1) + u64(0) * 4),)), "unknown value type 77"),
    "a huge array of numbers": (file_bytes((entry("k", 9, u32(6) + u64(2**40)),)), "array 'k' claims 1099511627776"),
    "a huge array of strings": (file_bytes((entry("k", 9, u32(8) + u64(2**40)),)), "array 'k' claims 1099511627776"),
    "arrays nested without end": (file_bytes((entry("k", 9, NESTED * 60),)), "unknown value type"),
    "a key twice": (file_bytes((entry("k", 4, u32(1)), entry("k", 4, u32(1)))), "'k' appears twice"),
    "alignment 3": (file_bytes((entry("general.alignment", 4, u32(3)),)), "general.alignment=3"),
    "alignment 0": (file_bytes((entry("general.alignment", 4, u32(0)),)), "general.alignment=0"),
    "an unknown tensor type": (file_bytes((), (tensor("a", code=99),), 64), "'a' has unknown ggml type 99"),
    "nine dimensions": (file_bytes((), (tensor("a", (1,) * 9),), 64), "'a' claims 9 dimensions"),
    "no values": (file_bytes((), (tensor("a", (0, 4)),), 64), "'a' of type F32 has shape (4, 0)"),
    "rows of half blocks": (file_bytes((), (tensor("a", (33,), 8),), 64), "whole blocks of 32"),
    "a tensor twice": (file_bytes((), (tensor("a"), tensor("a", offset=32)), 64), "'a' appears twice"),
    "an offset between": (file_bytes((), (tensor("a", offset=8),), 64), "'a' has offset 8"),
    "tensors that overlap": (file_bytes((), (tensor("a", (16,)), tensor("b", (4,), 0, 32)), 64), "'a' and 'b' overlap"),
    "an offset past the end": (file_bytes((), (tensor("a", offset=2**50),), 64), "'a' ends at byte"),
    "a size past 2^64": (file_bytes((), (tensor("a", (2**40, 2**40)),), 64), "'a' ends at byte"),
}


@pytest.mark.parametrize("case", BAD)
def test_damage_is_named(case: str, tmp_path: Path) -> None:
    data, message = BAD[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_gguf(path)
    assert path.name in str(error.value)


def test_good_bytes_parse(tmp_path: Path) -> None:
    """The helpers above make a valid file when nothing is wrong, or the cases would prove little."""
    path = tmp_path / "good.gguf"
    entries = (entry("a", 4, u32(7)), entry("b", 9, u32(6) + u64(2) + struct.pack("<2f", 1, 2)))
    entries += (entry("c", 9, u32(9) + u64(1) + u32(8) + u64(1) + text("é")),)
    path.write_bytes(file_bytes(entries, (tensor("x", (4, 2)), tensor("y", (4,), 0, 32)), 48))
    file = read_gguf(path)
    assert file.metadata["a"] == 7
    assert file.metadata["b"].tolist() == [1, 2]
    assert file.metadata["c"] == [["é"]]
    assert file.tensors["x"].shape == (2, 4)
    assert file.tensors["y"].offset == file.tensors["x"].offset + 32


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.999])
def test_a_file_cut_short_is_refused(share: float, tmp_path: Path) -> None:
    whole = llama_gguf(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"cut short|hold|fewer"):
        read_gguf(cut)


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return llama_gguf(tmp_path_factory.mktemp("fuzz") / "whole.gguf").read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "damaged.gguf"


@settings(max_examples=300)
@given(st.data())
def test_random_damage_raises_nothing_but_value_error(whole_file: bytes, scratch: Path, data: st.DataObject) -> None:
    """Up to four overwritten runs of bytes, most of them in the header, and sometimes a cut."""
    damaged = bytearray(whole_file)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 3000))
        run = data.draw(st.binary(min_size=1, max_size=9) | st.sampled_from([b"\xff" * 8, bytes(8), u64(2**40)]))
        damaged[at : at + len(run)] = run
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged) - 1)) :]
    scratch.write_bytes(damaged)
    with bounded_memory():
        try:
            checkpoint = open_gguf(scratch)
        except ValueError:
            return
        for name in checkpoint.names():
            with warnings.catch_warnings():       # damaged numbers may well overflow
                warnings.simplefilter("ignore", RuntimeWarning)
                assert checkpoint.read(name).shape == checkpoint.shape(name)


def test_types_agree_with_the_gguf_package() -> None:
    theirs = {t.value: (t.name, *gguf.GGML_QUANT_SIZES[t]) for t in gguf.GGMLQuantizationType}
    ours = {code: tuple(layout) for code, layout in GGML_TYPES.items()}
    assert len(ours) >= 30
    # Either side may know a type that the other's release does not.
    assert {code: ours[code] for code in ours.keys() & theirs} == {code: theirs[code] for code in ours.keys() & theirs}


@pytest.mark.parametrize("kind", [
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
    "IQ4_NL", "IQ4_XS",
])  # fmt: skip
def test_every_quantisation_reads_in_row_slices(kind: str) -> None:
    """Slices of rows give what dequantising everything at once gives, bit for bit, on random bytes."""
    size = row_bytes(kind, 512)
    raw = np.random.default_rng(0).integers(0, 256, 6 * size, np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)       # random scales overflow
        whole = gguf.quants.dequantize(raw.reshape(6, size), gguf.GGMLQuantizationType[kind])
        slices = [dequantize_rows(raw[i * size : (i + 2) * size], kind, 512) for i in (0, 2, 4)]
    assert whole.shape == (6, 512)
    np.testing.assert_array_equal(np.concatenate(slices), whole)


def test_equal_to_the_reference_reader(smollm2: str) -> None:
    checkpoint = open_checkpoint(smollm2, progress=False)
    reader = gguf.GGUFReader(checkpoint.path)
    theirs = {t.name: (tuple(reversed(t.shape.tolist())), t.tensor_type.name, t.data_offset) for t in reader.tensors}
    ours = {t.name: (t.shape, t.type, t.offset) for t in read_gguf(checkpoint.path).tensors.values()}
    assert ours == theirs
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in checkpoint.metadata.items()} == fields
    by_name = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors if "blk.7." in t.name}
    plain = checkpoint.read("model.layers.7.mlp.down_proj.weight")
    np.testing.assert_array_equal(plain, by_name["blk.7.ffn_down.weight"])
    rotated = by_name["blk.7.attn_k.weight"].reshape(3, 32, 2, 576).swapaxes(1, 2).reshape(192, 576)
    np.testing.assert_array_equal(checkpoint.read("model.layers.7.self_attn.k_proj.weight"), rotated)


def test_types_without_numbers_are_refused_by_name(tmp_path: Path) -> None:
    path = llama_gguf(tmp_path / "x.gguf")
    raw = bytearray(path.read_bytes())
    at = raw.index(text("blk.0.attn_norm.weight")) + len(text("blk.0.attn_norm.weight")) + 4 + 8
    raw[at : at + 4] = u32(26)
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="ggml type I32, which the gguf package cannot dequantise"):
        open_checkpoint(path)


def test_without_the_gguf_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = llama_gguf(tmp_path / "x.gguf", kind="Q8_0")
    monkeypatch.setitem(sys.modules, "gguf", None)      # as if it were not there
    assert read_gguf(path).tensors["output.weight"].type == "Q8_0"
    with pytest.raises(ValueError, match=r"pip install jaxengine\[gguf\]"):
        open_checkpoint(path)
