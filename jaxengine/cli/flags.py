"""Flags made from dataclass fields, so that the command line and the settings cannot drift apart.

A flag is its field's name with dashes. Only flags that were given reach the namespace, so a preset file or a
checkpoint's recommendation holds where the command line is silent.
"""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin


@dataclass(frozen=True)
class Flag:
    """How one field appears: its help, its names where they differ from the field's, and how text is read."""

    help: str
    names: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = None
    repeat: bool = False                 # the flag may be given several times; the values make a list
    metavar: str | None = None


def add_flag(group: argparse._ArgumentGroup, name: str, annotation: Any, default: Any, flag: Flag) -> None:
    """Adds the flag of field `name`; its value lands in the namespace under the field's name, if given."""
    names = flag.names or ("--" + name.replace("_", "-"),)
    note = "" if default is None or default in ("", ()) or flag.repeat else f" [{_show(default)}]"
    options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": flag.help + note}
    kind = _plain(annotation)
    if kind is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["type"] = flag.parse or (str if flag.repeat else integers if kind in (tuple, list) else kind)
        options["metavar"] = flag.metavar or {int: "N", float: "X", str: "NAME"}.get(kind, "N,N,...")
        if flag.repeat:
            options["action"] = "append"
    group.add_argument(*names, **options)


def given(args: argparse.Namespace, names: Any) -> dict[str, Any]:
    """The fields among `names` that the command line set."""
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def integers(text: str) -> list[int]:
    """'1,2,8' -> [1, 2, 8]."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be whole numbers with commas between, as 1,2,8") from None


_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def byte_count(text: str) -> int:
    """'4G' -> 4294967296. Small letters count in thousands, capitals in 1024s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of bytes, as 536870912, 512M or 4G")
    return int(float(match[1]) * _UNITS.get(match[2], 1))


def _plain(annotation: Any) -> type:
    """`int | None` -> int, `tuple[int, ...]` -> tuple."""
    if isinstance(annotation, types.UnionType) or get_origin(annotation) is Union:
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    return get_origin(annotation) or annotation


def _show(default: Any) -> str:
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)
