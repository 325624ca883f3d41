"""The safetensors header parser: every dtype, and every kind of damage named before anything is allocated."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_checkpoints import bounded_memory, llama_tensors, raw_safetensors, safetensors_bytes

from jaxengine.checkpoint.safetensors import DTYPES, read_safetensors


def one(dtype: Any = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def two(first: tuple[int, int], second: tuple[int, int]) -> dict[str, Any]:
    return one(offsets=first) | {"b": one(offsets=second)["a"]}


BAD = {
    "an empty file": (b"", "cut short: 0 bytes"),
    "a header past the end": (raw_safetensors("{}", b"", length=100), "its header claims 100 bytes"),
    "a header of 2^63 bytes": (raw_safetensors("{}", b"", length=2**63), "its header claims 9223372036854775808"),
    "no JSON": (raw_safetensors("{nonsense", b""), "not valid JSON"),
    "no UTF-8": ((2).to_bytes(8, "little") + b"\xff\xff", "not valid JSON"),
    "deeply nested JSON": (raw_safetensors("[" * 200_000, b""), "not valid JSON"),
    "a list": (raw_safetensors([], b""), "must be a JSON object, found list"),
    "a tensor that is a number": (raw_safetensors({"a": 1}, b""), "'a' must have dtype, shape and data_offsets"),
    "a tensor twice": (raw_safetensors('{"a": 1, "a": 2}', b""), "'a' appears twice"),
    "an unknown dtype": (raw_safetensors(one("F4"), bytes(16)), "'a' has dtype 'F4'"),
    "a dtype that is a list": (raw_safetensors(one([]), bytes(16)), "'a' has dtype []"),
    "a negative size": (raw_safetensors(one(shape=[-2, -2]), bytes(16)), "'a' has shape [-2, -2]"),
    "a size that is true": (raw_safetensors(one(shape=[True, 4]), bytes(16)), "'a' has shape [True, 4]"),
    "a fraction of a row": (raw_safetensors(one(shape=[2.0, 2]), bytes(16)), "'a' has shape [2.0, 2]"),
    "offsets backwards": (raw_safetensors(one(offsets=[16, 0]), bytes(16)), "'a' has data_offsets [16, 0]"),
    "one offset": (raw_safetensors(one(offsets=[16]), bytes(16)), "'a' has data_offsets [16]"),
    "too few bytes for the shape": (raw_safetensors(one(shape=[2, 3]), bytes(16)), "needs 24 bytes"),
    "a shape past 2^64": (raw_safetensors(one(shape=[2**40, 2**40]), bytes(16)), "data_offsets span 16"),
    "an offset past the end": (raw_safetensors(one(offsets=[2**50, 2**50 + 16]), bytes(16)), "'a' ends at byte"),
    "a file cut short": (raw_safetensors(one(), bytes(12)), "cut short or damaged: tensor 'a' ends"),
    "overlapping tensors": (raw_safetensors(two((0, 16), (8, 24)), bytes(24)), "'b' overlaps 'a'"),
    "the same place twice": (raw_safetensors(two((0, 16), (0, 16)), bytes(16)), "'b' overlaps 'a'"),
    "a gap": (raw_safetensors(two((0, 16), (20, 36)), bytes(36)), "'b' leaves a gap after 'a'"),
    "bytes after the end": (raw_safetensors(one(), bytes(20)), "its tensors end at byte"),
}


@pytest.mark.parametrize("case", BAD)
def test_damage_is_named(case: str, tmp_path: Path) -> None:
    data, message = BAD[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(message)) as error, bounded_memory():
        read_safetensors(path)
    assert path.name in str(error.value)


@pytest.mark.parametrize("word", DTYPES)
def test_every_dtype_reads(word: str, tmp_path: Path) -> None:
    values = np.asarray([[0, 1, 0.5], [2, 1, 0]]).astype(DTYPES[word])
    raw = values.tobytes()
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_safetensors({"a": {"dtype": word, "shape": [2, 3], "data_offsets": [0, len(raw)]}}, raw))
    read = read_safetensors(path).array("a")
    assert read.dtype == values.dtype
    np.testing.assert_array_equal(read.astype(np.float64), values.astype(np.float64))


def test_fp8_is_the_format_without_infinities() -> None:
    assert DTYPES["F8_E4M3"] == ml_dtypes.float8_e4m3fn


def test_scalars_and_empty_tensors_read(tmp_path: Path) -> None:
    header = {
        "empty": {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]},
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    }
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_safetensors(header, np.float32(3).tobytes()))
    file = read_safetensors(path)
    assert file.array("scalar") == 3
    assert file.array("empty").shape == (0, 4)


WHOLE = safetensors_bytes(llama_tensors())
HEADER = int.from_bytes(WHOLE[:8], "little")


@settings(max_examples=300)
@given(st.data())
def test_random_damage_raises_nothing_but_value_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, HEADER + 8))
        run = data.draw(st.binary(min_size=1, max_size=4) | st.sampled_from([b"9" * 12, b"]", b'"', b"-1", b"1e9"]))
        damaged[at : at + len(run)] = run
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged) - 1)) :]
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(damaged)
    with bounded_memory():
        try:
            file = read_safetensors(path)
        except ValueError:
            return
        for name, tensor in file.tensors.items():
            assert file.array(name).shape == tensor.shape


@settings(max_examples=200)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["a", "dtype", "shape", "data_offsets", "__metadata__"]), inner, max_size=4
    ),
    max_leaves=12,
))  # fmt: skip
def test_any_json_raises_nothing_but_value_error(tmp_path_factory: pytest.TempPathFactory, header: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "odd.safetensors"
    path.write_bytes(raw_safetensors(json.dumps(header), bytes(8)))
    with suppress(ValueError):
        read_safetensors(path)
