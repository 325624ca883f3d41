"""What a benchmark found: a table to read, and the same as JSON to keep."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxengine.bench.environment import environment


@dataclass
class Report:
    """rows: one dict a line of the table, the same keys in each. facts: settings and single figures.

    A key says its unit (`tok/s`, `ms`, `MB`); None is shown as '-'.
    """

    name: str
    rows: list[dict[str, Any]]
    facts: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=environment)

    def text(self) -> str:
        env = self.environment
        width = max(map(len, self.facts), default=0)
        return "\n".join([
            f"{self.name}: {env['device']}, {env['cpu']}, {env['cores']} cores, jax {env['jax']}, {env['date']}",
            *(f"  {key:<{width}}  {show(value)}" for key, value in self.facts.items()),
            table(self.rows),
        ])

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "environment": self.environment, "facts": self.facts, "rows": self.rows}


def table(rows: list[dict[str, Any]]) -> str:
    """Right-aligned columns under the rows' keys, in the order in which keys first appear."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [keys, *([show(row.get(key)) for key in keys] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(keys))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def show(value: Any) -> str:
    """A number with three or four significant digits; other values as they are."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if value == 0 or 1000 <= abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.1f}" if 100 <= abs(value) < 1000 else f"{value:.3g}"


def finish(report: Report, args: argparse.Namespace) -> int:
    """Prints a report, writes it where --json says, and returns the exit code."""
    print(report.text(), flush=True)
    if args.json is not None:
        Path(args.json).write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    return 0
