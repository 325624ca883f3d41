"""Any supported checkpoint -> an Orbax checkpoint or a Hugging Face folder."""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax.numpy as jnp

from jaxengine.checkpoint.checkpoint import Checkpoint
from jaxengine.checkpoint.export import write_safetensors
from jaxengine.checkpoint.gguf_vocabulary import write_vocabulary
from jaxengine.checkpoint.load import load_params
from jaxengine.checkpoint.open import open_checkpoint
from jaxengine.checkpoint.orbax_checkpoint import write_orbax
from jaxengine.models.registry import family
from jaxengine.tokenizer.export import write_huggingface_tokenizer
from sharding import make_mesh

log = logging.getLogger(__name__)

FORMATS = ("orbax", "huggingface")
DTYPES = ("auto", "float32", "bfloat16", "float16")
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json",
)


def convert(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    format: str = "orbax",
    dtype: str = "auto",
    *,
    accept_terms: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Path:
    """Writes `model` (anything that `open_checkpoint` opens) to the new folder `out`, weights in `dtype`.

    "orbax": parameters as the engine holds them, fast to open. "huggingface": safetensors under published
    names. Either with config, generation defaults and the tokenizer's files. The folder appears only when it is
    complete. Raises ValueError where `out` is not free or an option is unknown.
    """
    if format not in FORMATS:
        raise ValueError(f"format={format!r} is not supported; known: {', '.join(FORMATS)}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is not supported; known: {', '.join(DTYPES)}")
    target = Path(out).absolute()
    _check_free(target)
    checkpoint = open_checkpoint(model, accept_terms=accept_terms, cache_dir=cache_dir, progress=progress)
    chosen = checkpoint.dtype if dtype == "auto" else dtype
    module = family(checkpoint.config)
    cfg = module.Config.from_published(checkpoint.config)
    params = load_params(checkpoint, module, cfg, make_mesh(), jnp.dtype(chosen), progress)
    with _appearing(target) as folder:
        _write_surroundings(checkpoint, chosen, folder)
        if format == "orbax":
            write_orbax(params, chosen, folder)
        else:
            write_safetensors(params, module, cfg, chosen, folder)
            _write_tokenizer(checkpoint, folder)
    return target


def _write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    try:
        write_huggingface_tokenizer(checkpoint.metadata, folder)
    except ValueError as error:      # the weights are worth having all the same
        log.warning("no tokenizer.json was written: %s", error)


def _check_free(target: Path) -> None:
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ValueError(f"{target} exists already; remove it or name another folder")


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A scratch folder beside `target` that takes its name at the end, or vanishes with an error."""
    scratch = target.parent / f".{target.name}.partial-{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        yield scratch
        _check_free(target)
        if target.is_dir():
            target.rmdir()
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_surroundings(checkpoint: Checkpoint, dtype: str, folder: Path) -> None:
    """config.json, generation_config.json and whatever the tokenizer is made from."""
    # Newer readers look for "dtype", older ones for "torch_dtype".
    config = checkpoint.config | {"dtype": dtype, "torch_dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    if checkpoint.generation_config:
        (folder / "generation_config.json").write_text(json.dumps(checkpoint.generation_config, indent=1))
    write_vocabulary(checkpoint.metadata, folder)
    for name in _TOKENIZER_FILES:
        if checkpoint.path.is_dir() and (checkpoint.path / name).is_file():
            shutil.copyfile(checkpoint.path / name, folder / name)
