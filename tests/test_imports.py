"""The direction of imports, which keeps each part readable and testable by itself."""

import re
import subprocess
import sys
import tomllib

import pytest
from import_graph import PACKAGES, ROOT, find_cycle, imports, modules

# What a part of the project may import besides itself. The longest prefix decides.
MAY_IMPORT = {
    "pallas_kernels": (),
    "sharding": (),
    "jaxengine": (      # the facade, lazily
        "jaxengine.types", "jaxengine.structured_outputs", "jaxengine.config", "jaxengine.engine",
    ),
    "jaxengine.structured_outputs": (),
    "jaxengine.types": ("jaxengine.structured_outputs",),
    "jaxengine.host_cpu": (),
    "jaxengine.config": (),
    "jaxengine.generation_defaults": ("jaxengine.types",),
    "jaxengine.scheduler": ("jaxengine.types", "jaxengine.config"),
    "jaxengine.arrays": ("pallas_kernels",),
    "jaxengine.layers": ("jaxengine.arrays", "jaxengine.host_cpu", "sharding"),
    "jaxengine.layers.attention": ("jaxengine.arrays", "jaxengine.layers", "sharding", "pallas_kernels"),
    "jaxengine.layers.moe": ("jaxengine.arrays", "jaxengine.layers", "sharding", "pallas_kernels"),
    "jaxengine.models": ("jaxengine.arrays", "jaxengine.layers", "sharding"),
    "jaxengine.tokenizer": ("jaxengine.config", "jaxengine.types"),
    "jaxengine.checkpoint": (
        "jaxengine.models", "jaxengine.config", "jaxengine.tokenizer", "jaxengine.types", "sharding",
    ),
    "jaxengine.structured": ("jaxengine.structured_outputs", "jaxengine.tokenizer"),
    "jaxengine.engine": (
        "jaxengine.arrays", "jaxengine.checkpoint", "jaxengine.config", "jaxengine.generation_defaults",
        "jaxengine.host_cpu", "jaxengine.models", "jaxengine.scheduler", "jaxengine.structured", "jaxengine.tokenizer",
        "jaxengine.types", "pallas_kernels", "sharding",
    ),
    "jaxengine.server": (
        "jaxengine.config", "jaxengine.engine", "jaxengine.structured", "jaxengine.structured_outputs",
        "jaxengine.tokenizer", "jaxengine.types",
    ),
    "jaxengine.bench": ("jaxengine", "pallas_kernels", "sharding"),
    "jaxengine.cli": (
        "jaxengine.bench", "jaxengine.checkpoint", "jaxengine.config", "jaxengine.engine", "jaxengine.models.registry",
        "jaxengine.server", "jaxengine.types",
    ),
}
NO_JAX = (
    "jaxengine.types", "jaxengine.structured_outputs", "jaxengine.config", "jaxengine.generation_defaults",
    "jaxengine.scheduler", "jaxengine.cli",
)
ONLY_JAX = ("pallas_kernels", "sharding")
NUMERIC = {"jax", "jaxlib", "numpy", "ml_dtypes", "flax"}

# Imported inside a function, because the package is optional or heavy; everything else stands at the top.
LAZY = {
    "gguf", "llguidance", "sentencepiece", "orbax.checkpoint",
    "pallas_kernels.ragged_paged_attention.gpu", "pallas_kernels.ragged_paged_attention.tpu",     # the dispatcher's
}
# A part that is an extra of its own, beside what else its packages bring along. Nothing below it imports it.
SERVER, WITH_FASTAPI = "jaxengine.server", {"starlette", "pydantic"}
OPTIONAL = ("fastapi", "uvicorn", "gguf", "llguidance", "sentencepiece")

RUNTIME = [found for found in imports() if not found.for_types]


def _within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def _part(module: str) -> str:
    return max((part for part in MAY_IMPORT if _within(module, part)), key=len)


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in PACKAGES


@pytest.mark.floor
def test_imports_point_one_way():
    wrong = []
    for found in imports():       # for types too: a name in an annotation is a dependency of the reader
        if not _is_ours(found.target) or found.target == "jaxengine":
            continue
        part = _part(found.importer)
        allowed = (part, *MAY_IMPORT[part]) if part != "jaxengine" else MAY_IMPORT[part]
        if not any(_within(found.target, prefix) for prefix in allowed):
            wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


def test_only_the_facade_and_those_above_the_engine_import_the_package_itself():
    above = ("jaxengine.bench", "jaxengine.cli", "jaxengine.server")
    wrong = [str(f) for f in RUNTIME if f.target == "jaxengine" and _part(f.importer) not in above]
    assert not wrong, "\n".join(wrong)


def test_no_cycles():
    edges = {}
    for found in RUNTIME:
        if _is_ours(found.target) and found.importer != found.target:
            edges.setdefault(found.importer, set()).add(found.target)
    assert find_cycle(edges) is None


def test_a_cycle_would_be_found():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}}) is None


def test_host_parts_know_no_jax_and_kernels_know_nothing_else():
    third_party = [f for f in RUNTIME if not _is_ours(f.target) and _root(f.target) not in sys.stdlib_module_names]
    wrong = [str(f) for f in third_party if any(_within(f.importer, p) for p in NO_JAX) and _root(f.target) in NUMERIC]
    wrong += [str(f) for f in third_party if _within(f.importer, ONLY_JAX[0]) and _root(f.target) not in NUMERIC]
    wrong += [str(f) for f in third_party if _within(f.importer, ONLY_JAX[1]) and _root(f.target) not in NUMERIC]
    assert not wrong, "\n".join(wrong)


def test_imports_stand_at_the_top():
    wrong = [str(found) for found in RUNTIME if found.in_function and found.target not in LAZY]
    assert not wrong, "\n".join(wrong)


def test_every_package_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {_requirement(text) for text in project["dependencies"]}
    extras = {_requirement(text) for texts in project["optional-dependencies"].values() for text in texts}
    wrong = []
    for found in RUNTIME:
        root = _root(found.target)
        if _is_ours(root) or root in sys.stdlib_module_names:
            continue
        name = {"orbax": "orbax_checkpoint"}.get(root, root)
        free = _within(found.importer, SERVER) and (name in extras or name in WITH_FASTAPI)
        if name not in core and not free and not (name in extras and found.in_function):
            wrong.append(f"{found}, which pyproject.toml does not require")
    assert not wrong, "\n".join(wrong)


def _root(module: str) -> str:
    return module.split(".")[0]


def _requirement(text: str) -> str:
    match = re.match(r"[\w-]+", text)
    assert match is not None
    return match[0].replace("-", "_").lower()


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.floor
def test_everything_imports_without_the_optional_packages():
    names = [name for name in modules() if name.rsplit(".", 1)[-1] not in ("gpu", "tpu")]
    names = [name for name in names if not _within(name, SERVER) and name != "jaxengine.bench.serve"]
    code = f"""
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
for name in {names!r}:
    importlib.import_module(name)
import jaxengine
for name in jaxengine.__all__:
    getattr(jaxengine, name)
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["jaxengine", "jaxengine.scheduler", "jaxengine.cli.main", "jaxengine.cli.chat"])
def test_imports_without_jax(module: str):
    done = _python(f"import sys, {module}; print('jax' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr
