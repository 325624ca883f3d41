"""The README's table of settings, from the flags and their defaults.

    python tests/cli/readme_settings.py      writes it into README.md
"""

from pathlib import Path

from jaxengine.cli.engine_flags import FLAGS, groups

README = Path(__file__).parent.parent.parent / "README.md"
BEGIN, END = "<!-- settings: python tests/cli/readme_settings.py writes them -->\n", "<!-- end of settings -->"


def table() -> str:
    lines = ["| flag | default | what |", "|---|---|---|"]
    for _, settings in groups():
        for name, _, default in settings:
            flag = FLAGS[name]
            names = ", ".join(f"`{n}`" for n in flag.names or ("--" + name.replace("_", "-"),))
            shown = "" if default in (None, ()) else f"`{_toml(default)}`"
            lines.append(f"| {names} | {shown} | {flag.help} |")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def sections(text: str) -> tuple[str, str, str]:
    """The README before the table, the table, and what follows."""
    before, _, rest = text.partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


if __name__ == "__main__":
    before, _, after = sections(README.read_text())
    README.write_text(before + BEGIN + table() + END + after)
