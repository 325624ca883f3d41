"""JAX's persistent compilation cache, on by default: the second start compiles nothing."""

import hashlib
import logging
import platform
from pathlib import Path

import jax
from jaxlib import version as jaxlib_version

from jaxengine import host_cpu

log = logging.getLogger(__name__)


def enable(directory: str | None) -> Path | None:
    """Points JAX at a cache folder, keyed by jaxlib's version, the platform and this CPU's features.

    None: the user's cache folder. "": off. A folder that the caller configured in JAX itself is kept.
    Entries compiled for another CPU crash, hence the key. A folder that cannot be made is warned of and left unused.
    """
    if directory == "":
        return None
    if jax.config.jax_compilation_cache_dir:
        return Path(jax.config.jax_compilation_cache_dir)
    base = Path(directory).expanduser() if directory else Path.home() / ".cache" / "jaxengine" / "xla"
    folder = base / f"{jax.default_backend()}-{jaxlib_version.__version__}-{_cpu_key()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning("every start compiles anew: the compilation cache %s cannot be used: %s", folder, error.strerror)
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def _cpu_key() -> str:
    described = " ".join([platform.machine(), platform.processor(), *sorted(host_cpu.features())])
    return hashlib.blake2b(described.encode(), digest_size=6).hexdigest()
