"""One name -> an opened checkpoint, whatever its format."""

import os
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from jaxengine.checkpoint.checkpoint import Checkpoint
from jaxengine.checkpoint.demo import demo_models, fetch_demo
from jaxengine.checkpoint.gguf_checkpoint import open_gguf
from jaxengine.checkpoint.huggingface import open_huggingface
from jaxengine.checkpoint.orbax_checkpoint import MARKER, open_orbax

_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)


def open_checkpoint(
    model: str | os.PathLike[str],
    *,
    accept_terms: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Checkpoint:
    """Opens a demo model, a folder (Hugging Face or Orbax), a .gguf file or a hub id ("org/name@revision").

    A demo model or hub id is downloaded first, into `cache_dir` or the usual cache folder; `accept_terms`
    says that the user accepts the terms that a demo model comes with. Only headers are read, all are checked.
    Raises ValueError for anything that is not a usable model, naming what is wrong.
    """
    name = os.fspath(model)
    if name in demo_models():
        demo = demo_models()[name]
        checkpoint = open_gguf(fetch_demo(demo, accept_terms, cache_dir, progress))
        return replace(checkpoint, generation_config={**checkpoint.generation_config, **demo.generation_config})
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _open_folder(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"{name} is a file, but not a .gguf one; for safetensors, name the folder")
        return open_gguf(path)
    match = _HUB_ID.fullmatch(name)
    if match and path.suffix != ".gguf" and not name.startswith("."):
        hub = import_module("jaxengine.checkpoint.hub")       # takes a moment to import
        return _open_folder(hub.fetch_from_hub(match[1], match[2], cache_dir, progress))
    raise ValueError(
        f"there is no model {name!r}. A model is a demo name ({', '.join(demo_models())}), a folder, "
        "a .gguf file (neither exists by this name), or a hub id (org/name or org/name@revision)"
    )


def _open_folder(folder: Path) -> Checkpoint:
    if (folder / MARKER).is_file():
        return open_orbax(folder)
    if not (folder / "config.json").is_file() and (files := sorted(folder.glob("*.gguf"))):
        raise ValueError(f"{folder} has no config.json; to open a GGUF file, name it: {files[0]}")
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} is neither a Hugging Face folder (it has no config.json) nor an Orbax checkpoint that "
            f"`jaxengine convert` wrote (it has no {MARKER})"
        )
    return open_huggingface(folder)
