"""What the README says about names and defaults is so."""

import re

import pytest
from readme_settings import README, sections, tables

import jaxengine
from jaxengine.cli import main


@pytest.mark.parametrize("name", tables())
def test_the_tables_of_settings_are_current(name: str):
    assert sections(README.read_text(), name)[1] == tables()[name], "run python tests/cli/readme_settings.py"


def test_make_targets_that_are_shown_exist():
    shown = set(re.findall(r"\bmake ([a-z-]+)", README.read_text()))
    targets = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.MULTILINE))
    assert {"serve", "chat", "test"} <= shown <= targets


def test_python_examples_name_what_exists():
    code = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    compile(code, "README.md", "exec")
    imported = re.findall(r"from jaxengine import (.*)", code)
    assert imported
    assert {name.strip() for line in imported for name in line.split(",")} <= set(jaxengine.__all__)


def test_commands_that_are_shown_exist():
    shown = "\n".join(re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL))
    commands = set(re.findall(r"jaxengine (\w+)", shown))
    assert commands
    assert commands <= set(main.COMMANDS)
