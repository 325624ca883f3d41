"""What this machine's CPU can do, for code that XLA compiles for it."""

from functools import cache
from pathlib import Path


@cache
def features() -> frozenset[str]:
    """Instruction set flags as Linux names them; empty where they cannot be read."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    return frozenset(flags.split(":", 1)[1].split())


def multiplies_bf16() -> bool:
    """Whether bfloat16 matrix products have instructions of their own, or the flags are unknown."""
    return not features() or not features().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})
