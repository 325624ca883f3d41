"""A picture of the scaling report: what each step's floor is made of."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PARTS = ("matmul ms", "attention ms", "exchange ms")


def draw(rows: list[dict[str, Any]], file: Path) -> str:
    """One panel a model and step, one bar a mesh. Returns what to report: the file, or why there is none."""
    if find_spec("matplotlib") is None:
        return "none: matplotlib is missing (pip install 'jaxengine[notebook]')"
    import_module("matplotlib").use("Agg")
    panels = list(dict.fromkeys((row["model"], row["step"]) for row in rows))
    steps = list(dict.fromkeys(step for _, step in panels))
    models = list(dict.fromkeys(model for model, _ in panels))
    figure, grid = import_module("matplotlib.pyplot").subplots(
        len(models), len(steps), figsize=(6 * len(steps), 3.2 * len(models)), squeeze=False, layout="constrained"
    )
    for model, line in zip(models, grid, strict=True):
        for step, axes in zip(steps, line, strict=True):
            _panel(axes, f"{model}, {step}", [r for r in rows if (r["model"], r["step"]) == (model, step)])
    figure.savefig(file, dpi=120)
    return str(file)


def _panel(axes: Any, title: str, rows: list[dict[str, Any]]) -> None:
    names = [f"{row['data']}x{row['tensor']}" + ("" if row["fits"] == "yes" else " (!)") for row in rows]
    below = [0.0] * len(rows)
    for part in PARTS:
        heights = [row[part] for row in rows]
        axes.bar(names, heights, bottom=below, label=part.removesuffix(" ms"))
        below = [a + b for a, b in zip(below, heights, strict=True)]
    axes.set_title(title)
    axes.set_ylabel("ms a step")
    axes.set_xlabel("data x tensor; (!) does not fit")
    axes.tick_params(axis="x", rotation=45)
    axes.legend()
