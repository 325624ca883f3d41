"""Measures the kernels and the compiled steps on an accelerator. Needs jax, numpy and flax, and nothing else."""
