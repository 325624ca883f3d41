"""The README's tables of settings, from the flags and their defaults.

    python tests/cli/readme_settings.py      writes them into README.md
"""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from jaxengine.cli import serve
from jaxengine.cli.engine_flags import FLAGS, groups
from jaxengine.cli.flags import Flag
from jaxengine.server.settings import ServerSettings

README = Path(__file__).parent.parent.parent / "README.md"
END = "<!-- end of settings -->"


def begin(name: str) -> str:
    return f"<!-- {name}: python tests/cli/readme_settings.py writes them -->\n"


def tables() -> dict[str, str]:
    """Each table's text by its name in the README."""
    engine = ((name, default, FLAGS[name]) for _, settings in groups() for name, _, default in settings)
    server = ((field.name, field.default, serve.FLAGS[field.name]) for field in fields(ServerSettings))
    return {"settings": _table(engine), "server settings": _table(server)}


def _table(settings: Iterator[tuple[str, object, Flag]]) -> str:
    lines = ["| flag | default | what |", "|---|---|---|"]
    for name, default, flag in settings:
        names = ", ".join(f"`{n}`" for n in flag.names or ("--" + name.replace("_", "-"),))
        shown = "" if default in (None, ()) else f"`{_toml(default)}`"
        lines.append(f"| {names} | {shown} | {flag.help} |")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def sections(text: str, name: str) -> tuple[str, str, str]:
    """The README before a table, the table, and what follows."""
    before, _, rest = text.partition(begin(name))
    inside, _, after = rest.partition(END)
    return before, inside, after


if __name__ == "__main__":
    for name, table in tables().items():
        before, _, after = sections(README.read_text(), name)
        README.write_text(before + begin(name) + table + END + after)
