"""The engine's kernels: jax only, no knowledge of engines."""
