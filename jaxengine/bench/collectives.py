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
_NAMED = re.compile(r"replica_groups=mesh\[[^\]]*\] \{([^}]*)\}")
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
    if named := _NAMED.search(line):
        inside = re.findall(r"'(\w+)'", named[1])
        return tuple(axis for axis in mesh if axis in inside and mesh[axis] > 1)
    groups = _groups(line, prod(mesh.values()))
    places = np.stack(np.unravel_index(np.arange(prod(mesh.values())), tuple(mesh.values())), axis=-1)
    spanned = (places[groups] != places[groups[:, :1]]).any((0, 1))
    return tuple(axis for axis, moves in zip(mesh, spanned, strict=True) if moves)


def _groups(line: str, num_devices: int) -> np.ndarray:
    """Partition ids int[groups, devices of a group]."""
    if listed := _LISTED.search(line) or _PAIRS.search(line):
        return np.array([[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])])
    iota = _IOTA.search(line)
    if iota is None:      # none given: all devices together
        return np.arange(num_devices)[None]
    shape, dims, order = ([int(n) for n in (text or "").split(",") if n] for text in iota.groups())
    ids = np.arange(prod(dims)).reshape(dims)
    return (ids.transpose(order) if order else ids).reshape(shape)
