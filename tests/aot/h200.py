"""Compiles for NVIDIA H200s that are not there: XLA and ptxas need only the chip's description (h200.txtpb)."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from sharding import make_mesh

DESCRIPTION = Path(__file__).with_name("h200.txtpb")
SMEM_LIMIT, SMEM_PER_MULTIPROCESSOR, MULTIPROCESSORS = 232_448, 233_472, 132


def devices(count: int) -> list:
    """`count` H200s of one host."""
    description = topologies.get_topology_desc(
        platform="cuda", target_config=DESCRIPTION.read_text(), topology=f"1x1x{count}"
    )
    return list(description.devices)


def mesh(count: int) -> Mesh:
    """The engine's mesh, tensor-parallel over `count` H200s."""
    return make_mesh(kv=count, devices=devices(count))


@dataclass(frozen=True)
class Machine:
    """What ptxas and the PTX say of one kernel."""

    name: str
    registers: int
    spill_bytes: int
    smem_bytes: int
    wgmma: int               # wgmma.mma_async instructions
    tensor_copies: int       # cp.async.bulk.tensor instructions


@contextmanager
def dumped() -> Iterator[Path]:
    """A folder into which Mosaic GPU writes each kernel's PTX and ptxas' report, of what is compiled inside."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"MOSAIC_GPU_DUMP_PTX": "1", "MOSAIC_GPU_DUMP_PTXAS": "1", "MOSAIC_GPU_DUMP_TO": folder}
        os.environ.update(settings)
        jax.clear_caches()
        try:
            yield Path(folder)
        finally:
            for name in settings:
                del os.environ[name]


def machines(folder: Path) -> list[Machine]:
    """The kernels in a folder of dumps, by name."""
    found = []
    for report in sorted(folder.glob("*.ptxas")):
        text, ptx = report.read_text(errors="replace"), report.with_suffix(".ptx").read_text()
        resources = report.with_suffix(".resources.txt").read_text()
        found.append(Machine(
            name=re.sub(r"_\d+$", "", report.stem),
            registers=_number(r"Used (\d+) registers", text),
            spill_bytes=_number(r"(\d+) bytes spill stores", text),
            smem_bytes=_number(r"smem_scratch_bytes=(\d+)", resources),
            wgmma=ptx.count("wgmma.mma_async"),
            tensor_copies=ptx.count("cp.async.bulk.tensor"),
        ))
    return found


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, f"no {pattern} in the dump"
    return int(found[1])
