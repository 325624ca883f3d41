"""Compiles the kernels for chips that are not here, and reports what the compilers say."""
