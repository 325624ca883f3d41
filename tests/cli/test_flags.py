"""Flags and settings are one list: whatever a config has, the command line offers, and nothing else."""

import argparse
from dataclasses import fields

import pytest

from jaxengine.cli import engine_flags, generate, sampling_flags
from jaxengine.cli.flags import byte_count, given, integers
from jaxengine.config import EngineConfig, option_names
from jaxengine.types import SamplingParams


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    generate.add_arguments(parser)
    return parser.parse_args(["some-model", "--prompt", "x", *argv])


def test_every_engine_option_has_a_flag_and_no_flag_is_left_over():
    assert set(engine_flags.FLAGS) == option_names()


def test_every_sampling_parameter_has_a_flag_or_a_reason():
    names = {field.name for field in fields(SamplingParams)}
    assert set(sampling_flags.FLAGS) == names - sampling_flags.NOT_FLAGS
    assert names >= sampling_flags.NOT_FLAGS


# A value for each engine option: what is typed, and what must arrive.
ENGINE_VALUES = {
    "dtype": (["--dtype", "float32"], "float32"),
    "seed": (["--seed", "7"], 7),
    "attention_backend": (["--attention-backend", "reference"], "reference"),
    "block_size": (["--block-size", "32"], 32),
    "num_blocks": (["--num-gpu-blocks-override", "64"], 64),
    "kv_cache_memory_bytes": (["--kv-cache-memory-bytes", "2M"], 2 << 20),
    "gpu_memory_utilization": (["--gpu-memory-utilization", "0.5"], 0.5),
    "kv_cache_dtype": (["--kv-cache-dtype", "int8"], "int8"),
    "enable_prefix_caching": (["--no-enable-prefix-caching"], False),
    "max_num_seqs": (["--max-num-seqs", "8"], 8),
    "max_num_batched_tokens": (["--max-num-batched-tokens", "64"], 64),
    "max_model_len": (["--max-model-len", "128"], 128),
    "enable_chunked_prefill": (["--no-enable-chunked-prefill"], False),
    "policy": (["--scheduling-policy", "fcfs"], "fcfs"),
    "tensor_parallel_size": (["-tp", "2"], 2),
    "data_parallel_size": (["-dp", "2"], 2),
    "warmup": (["--warmup", "full"], "full"),
    "decode_buckets": (["--decode-buckets", "1,8"], [1, 8]),
    "token_buckets": (["--token-buckets", "32"], [32]),
    "cache_dir": (["--compilation-cache-dir", "/tmp/x"], "/tmp/x"),
    "forbid_compile_after_warmup": (["--forbid-compile-after-warmup"], True),
}


def test_the_table_above_is_complete():
    assert set(ENGINE_VALUES) == option_names()


@pytest.mark.parametrize("name", ENGINE_VALUES)
def test_an_engine_flag_arrives(name: str):
    typed, expected = ENGINE_VALUES[name]
    assert engine_flags.engine_options(parse(*typed)) == {name: expected}


def test_long_names_of_aliases():
    args = parse("--num-blocks", "9", "--tensor-parallel-size", "4")
    assert engine_flags.engine_options(args) == {"num_blocks": 9, "tensor_parallel_size": 4}


def test_what_is_not_given_stays_unset():
    args = parse()
    assert engine_flags.engine_options(args) == {}
    assert sampling_flags.sampling_options(args, 256) == {"max_tokens": 256}


def test_sampling_flags_arrive():
    args = parse(
        "--n", "2", "--temperature", "0.5", "--top-k", "4", "--top-p", "0.9", "--min-p", "0.1",
        "--repetition-penalty", "1.1", "--presence-penalty", "0.2", "--frequency-penalty", "0.3",
        "--logit-bias", "5=-1.5", "--logit-bias", "6=2",
        "--allowed-token-ids", "1,2", "--bad-words", "a b", "--min-tokens", "1", "--max-tokens", "3",
        "--stop", "x", "--stop", "y z", "--stop-token-ids", "9", "--include-stop-str-in-output",
        "--ignore-eos", "--logprobs", "2",
        "--prompt-logprobs", "0", "--no-skip-special-tokens",
    )
    expected = {
        "n": 2, "temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "logit_bias": {5: -1.5, 6: 2.0}, "allowed_token_ids": [1, 2],
        "bad_words": ["a b"], "min_tokens": 1, "max_tokens": 3, "stop": ["x", "y z"], "stop_token_ids": [9],
        "include_stop_str_in_output": True, "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 0,
        "skip_special_tokens": False,
    }
    assert sampling_flags.sampling_options(args, 256) == expected
    assert set(expected) == set(sampling_flags.FLAGS)


def test_a_flag_overrides_the_preset(tmp_path):
    preset = tmp_path / "mine.toml"
    preset.write_text("dtype = 'float32'\n[scheduler]\nmax_num_seqs = 2\nmax_model_len = 64\n")
    options = engine_flags.engine_options(parse("--config", str(preset), "--max-num-seqs", "3"))
    assert options == {"dtype": "float32", "max_num_seqs": 3, "max_model_len": 64}


@pytest.mark.parametrize("name", engine_flags.presets())
def test_shipped_presets_hold_options_that_exist(name: str):
    options = engine_flags.engine_options(parse("--config", name))
    assert options
    EngineConfig.from_options(**options)


def test_wrong_presets_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"--config nowhere: .*presets: batch, exact, laptop"):
        engine_flags.engine_options(parse("--config", "nowhere"))
    (tmp_path / "a.toml").write_text("max_num_seq = 2")
    with pytest.raises(ValueError, match="'max_num_seq' is not an engine option"):
        engine_flags.engine_options(parse("--config", str(tmp_path / "a.toml")))
    (tmp_path / "b.toml").write_text("max_num_seqs: 2")
    with pytest.raises(ValueError, match=r"b\.toml is not a TOML file"):
        engine_flags.engine_options(parse("--config", str(tmp_path / "b.toml")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1024", 1024), ("2k", 2000), ("2K", 2048), ("1.5G", 3 << 29), ("1m", 10**6)],
)
def test_byte_counts(text: str, expected: int):
    assert byte_count(text) == expected


@pytest.mark.parametrize("text", ["", "G", "4X", "-1", "1e9", "4 G"])
def test_wrong_byte_counts(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="number of bytes"):
        byte_count(text)


def test_integers():
    assert integers("4,8") == [4, 8]
    with pytest.raises(argparse.ArgumentTypeError, match="'4;8' must be whole numbers"):
        integers("4;8")


def test_given_takes_only_what_is_set():
    assert given(argparse.Namespace(a=0, b=None), ["a", "b", "c"]) == {"a": 0, "b": None}
