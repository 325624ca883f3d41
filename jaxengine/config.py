"""The engine's settings: frozen dataclasses, composed, validated once. Names are vLLM's flags. No jax here."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16", "fp8_e4m3", "int8")
WARMUPS = ("lazy", "background", "full")


@dataclass(frozen=True)
class CacheConfig:
    """The KV pool. Its size comes from the first that is given: num_blocks, kv_cache_memory_bytes, and
    on accelerators gpu_memory_utilization (share of device memory for weights and pool together)."""

    block_size: int = 16                          # tokens
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: str = "auto"                  # auto: the model's dtype
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1)
        if self.num_blocks is not None:
            _at_least("num_blocks", self.num_blocks, 2)      # block 0 is the null block
        if self.kv_cache_memory_bytes is not None:
            _at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization={self.gpu_memory_utilization} must be in (0, 1]")
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one step and of one sequence, in tokens and sequences."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None              # None: what the model declares
    enable_chunked_prefill: bool = True
    policy: str = "priority"                      # a name in scheduler.policies.POLICIES

    def __post_init__(self) -> None:
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is smaller than "
                f"max_num_seqs={self.max_num_seqs}: a step could not decode every running sequence; "
                "raise the one or lower the other"
            )
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2)


@dataclass(frozen=True)
class ParallelConfig:
    """data_parallel_size shards of tensor_parallel_size devices each. A shard has all weights, and a KV pool and
    sequences of its own; the limits of CacheConfig and SchedulerConfig are those of one shard."""

    tensor_parallel_size: int = 1
    data_parallel_size: int = 1

    def __post_init__(self) -> None:
        _at_least("tensor_parallel_size", self.tensor_parallel_size, 1)
        _at_least("data_parallel_size", self.data_parallel_size, 1)


@dataclass(frozen=True)
class CompileConfig:
    """Which shapes are compiled and when.

    warmup: "lazy" compiles a shape when first needed, "background" serves as soon as the first shapes are
    ready and compiles the rest meanwhile, "full" compiles everything before the engine is handed over.
    Empty bucket tuples mean a small set derived from the scheduler's limits.
    """

    warmup: str = "lazy"
    decode_buckets: tuple[int, ...] = ()          # sequences in a decode step
    token_buckets: tuple[int, ...] = ()           # flat tokens in a mixed step
    cache_dir: str | None = None                  # persistent compilation cache; None: the user's cache folder, "": off
    forbid_compile_after_warmup: bool = False     # raise instead of warning; tests set it

    def __post_init__(self) -> None:
        _one_of("warmup", self.warmup, WARMUPS)
        for name in ("decode_buckets", "token_buckets"):
            buckets = getattr(self, name)
            if list(buckets) != sorted(set(buckets)) or any(b < 1 for b in buckets):
                raise ValueError(f"{name}={buckets} must rise strictly and start at 1 or more")


@dataclass(frozen=True)
class EngineConfig:
    dtype: str = "auto"                           # auto: the checkpoint's
    seed: int = 0                                 # of requests that bring none
    attention_backend: str = "auto"
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """Builds the composed config from flat names, as `max_num_seqs=8, block_size=32`.

        Raises ValueError naming an option that does not exist.
        """
        parts = {f.name: f.default_factory for f in fields(cls) if is_dataclass(f.default_factory)}
        groups: dict[str, dict[str, Any]] = {name: {} for name in parts}
        top: dict[str, Any] = {}
        for name, value in options.items():
            for group, part in parts.items():
                if name in {f.name for f in fields(part)}:  # type: ignore[arg-type]
                    groups[group][name] = tuple(value) if isinstance(value, list) else value
                    break
            else:
                if name not in {f.name for f in fields(cls)} - set(parts):
                    raise ValueError(f"{name!r} is not an engine option; known: {', '.join(sorted(option_names()))}")
                top[name] = value
        return cls(**top, **{name: part(**groups[name]) for name, part in parts.items()})  # type: ignore[misc]

    @classmethod
    def from_toml(cls, path: str | Path, **overrides: Any) -> EngineConfig:
        """A preset file, then overrides on top."""
        return cls.from_options(**(read_preset(path) | overrides))


def read_preset(path: str | Path) -> dict[str, Any]:
    """The options in a preset file, by flat name; [cache], [scheduler], ... tables may group them.

    Raises ValueError when the file is not TOML; `from_options` judges the names and values.
    """
    try:
        content = tomllib.loads(Path(path).read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None
    options: dict[str, Any] = {}
    for name, value in content.items():
        options |= value if isinstance(value, dict) else {name: value}
    return options


def option_names() -> set[str]:
    """Every flat option name that `EngineConfig.from_options` takes."""
    names: set[str] = set()
    for f in fields(EngineConfig):
        part = f.default_factory
        names |= {g.name for g in fields(part)} if is_dataclass(part) else {f.name}  # type: ignore[arg-type]
    return names


def _at_least(name: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {low}")


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r} is not supported; known: {', '.join(known)}")
