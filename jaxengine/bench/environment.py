"""What a figure was measured on: without it the figure means nothing."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jaxlib.version

from jaxengine import __version__


def environment() -> dict[str, Any]:
    """The machine and the versions, as plain JSON values."""
    device = jax.devices()[0]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": num_cores(),
        "device": f"{jax.device_count()} x {device.device_kind}",
        "platform": device.platform,
        "os": platform.platform(terse=True),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "jaxengine": __version__,
        "load_average": os.getloadavg()[0],      # of the minute before: other work on the machine shows here
    }


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
