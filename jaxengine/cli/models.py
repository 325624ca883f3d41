"""Lists the demo models, which are fetched when first used, and the architectures that can be served."""

from __future__ import annotations

import argparse

from jaxengine.checkpoint import cached_demo, demo_models
from jaxengine.models.registry import FAMILIES

USAGE = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(args: argparse.Namespace) -> int:
    models = demo_models().values()
    width = max(len(demo.name) for demo in models)
    print("demo models")
    for demo in models:
        state = "cached" if cached_demo(demo) else f"{demo.num_bytes / 1e6:.0f} MB to fetch"
        print(f"  {demo.name:<{width}}  {demo.description} ({demo.license}; {state})")
    print("\narchitectures (of a folder, a .gguf file or a hub id)")
    for name in FAMILIES:
        print(f"  {name}")
    return 0
