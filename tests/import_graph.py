"""Reads the imports of the project's packages from their source, without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("jaxengine", "pallas_kernels", "sharding")


@dataclass(frozen=True)
class Import:
    """One import: by whom, of what, and whether it happens in a function or for type checkers only."""

    importer: str
    target: str
    line: int
    in_function: bool
    for_types: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def modules() -> dict[str, Path]:
    """Every module of the packages by dotted name; a package has its own name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports() -> list[Import]:
    known = modules()
    return [found for name, path in known.items() for found in _imports_of(name, path, known)]


def _imports_of(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    def visit(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node.lineno, in_function, for_types)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: write the import out from the package's root"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"      # a submodule, or a name inside the module
                yield Import(name, whole if whole in known else node.module, node.lineno, in_function, for_types)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                yield from visit(child, in_function, True)
            for child in node.orelse:
                yield from visit(child, in_function, for_types)
        else:
            inside = in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inside, for_types)

    yield from visit(ast.parse(path.read_text()), False, False)


def find_cycle(edges: dict[str, set[str]]) -> list[str] | None:
    """Some cycle of the graph, or None."""
    done: set[str] = set()

    def walk(node: str, trail: list[str]) -> list[str] | None:
        if node in trail:
            return [*trail[trail.index(node):], node]
        if node in done:
            return None
        for target in sorted(edges.get(node, ())):
            if cycle := walk(target, [*trail, node]):
                return cycle
        done.add(node)
        return None

    return next((cycle for node in sorted(edges) if (cycle := walk(node, []))), None)
