"""What devices send each other in a compiled step, read from its HLO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

KINDS = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")

_LINE = re.compile(rf"= (\(.*?\)|\S+) ({'|'.join(KINDS)})(-start)?\(")
_ARRAY = re.compile(r"([a-z]+\d*)(?:e\d+m\d+\w*)?\[([\d,]*)\]")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}")
_LISTED = re.compile(r"replica_groups=\{(\{[\d,{}]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{}]*\})\}")
_BITS = {"pred": 8, "bf16": 16, "c64": 64}


@dataclass(frozen=True)
class Collective:
    """One exchange. num_bytes: of its result on one device. axes: of the mesh, those that its groups span."""

    kind: str
    dtype: str
    num_bytes: int
    axes: tuple[str, ...]


def collectives(hlo: str, mesh: Mapping[str, int]) -> list[Collective]:
    """Of a module's text, in order. mesh: axis sizes, outermost first; partition ids count along it.

    What stands in a loop's body is listed once, however often the loop runs.
    """
    return [_read(line, found, mesh) for line in hlo.splitlines() if (found := _LINE.search(line))]


def _read(line: str, found: re.Match[str], mesh: Mapping[str, int]) -> Collective:
    shape, kind, started = found.groups()
    arrays = [(dtype, _num_bytes(dtype, dims)) for dtype, dims in _ARRAY.findall(shape)]
    if started and kind != "all-reduce":      # the operands come first, then as many results
        arrays = arrays[len(arrays) // 2 :]
    return Collective(kind, arrays[0][0], sum(size for _, size in arrays), _axes(line, mesh))


def _num_bytes(dtype: str, dims: str) -> int:
    bits = _BITS.get(dtype) or int(re.sub(r"\D", "", dtype))
    return prod(int(n) for n in dims.split(",") if n) * bits // 8


def _axes(line: str, mesh: Mapping[str, int]) -> tuple[str, ...]:
    groups = _groups(line, prod(mesh.values()))
    places = np.stack(np.unravel_index(np.arange(prod(mesh.values())), tuple(mesh.values())), axis=-1)
    spanned = (places[groups] != places[groups[:, :1]]).any((0, 1))
    return tuple(axis for axis, moves in zip(mesh, spanned, strict=True) if moves)


def _groups(line: str, num_devices: int) -> np.ndarray:
    """Partition ids int[groups, devices of a group]."""
    if named := _NAMED.search(line):      # the compiler's own mesh, which may have other axes, in another order
        mesh, dims, order, inside = named.groups()
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
        ids = _iota(dims or str(num_devices), order).reshape(tuple(sizes.values()))
        axes = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", inside)]
        return np.moveaxis(ids, axes, range(-len(axes), 0)).reshape(-1, prod(ids.shape[axis] for axis in axes))
    if listed := _LISTED.search(line) or _PAIRS.search(line):
        return np.array([[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])])
    if iota := _IOTA.search(line):
        return _iota(iota[2], iota[3]).reshape(_numbers(iota[1]))
    return np.arange(num_devices)[None]      # none given: all devices together


def _iota(dims: str, order: str | None) -> np.ndarray:
    ids = np.arange(prod(_numbers(dims))).reshape(_numbers(dims))
    return ids.transpose(_numbers(order)) if order else ids


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))
